// Attention of a request's new rows over its cache, for the query heads that share one key-value head, as products of tiles.
//
// A row's weights lie in the order of its sequence: the committed positions, then its ancestors. Its values are summed in this order,
// 32 positions a step, so a row of a tree gives to the last bit what the same row gives when its ancestors are committed.
#pragma once
#include "products.h"
#include "vectors.h"

enum { LANES = 2 * TILE, WIDEST = 256 };  // queries whose attention is one piece of work, and numbers of a head, at most

static const bf16 nothing[WIDEST];

static inline long up_to(long count, long multiple) { return (count + multiple - 1) / multiple * multiple; }

// Keys [dim] of 32 positions become two blocks of a matrix [positions, dim] in tiles.
static void turn_keys(const bf16 *const *keys, int dim, bf16 *out) {
  for (int first = 0; first < STEP; first += TILE)
    for (int d = 0; d < dim; d += STEP) {
      words pairs[TILE];
      for (int i = 0; i < TILE; i++) pairs[i] = *(const words *)(keys[first + i] + d);
      transpose(pairs);
      for (int i = 0; i < TILE; i++) *(words *)(out + first * dim + d * TILE + i * STEP) = pairs[i];
    }
}

// Values [dim] of 32 positions become a step of each block of a matrix [dim, positions] in tiles.
static void turn_values(const bf16 *const *values, int dim, bf16 *out, long block) {
  for (int i = 0; i < STEP; i += 2)
    for (int d = 0; d < dim; d += TILE) *(words *)(out + d / TILE * block + i * TILE) = interleave(values[i] + d, values[i + 1] + d);
}

// Both of positions [begin, begin + 32) of a cache's [positions][dim]; zeros behind end. positions: of all blocks, a multiple of 32.
static void turn(
    const bf16 *keys, const bf16 *values, long begin, long end, int dim, long positions, bf16 *turned_keys, bf16 *turned_values
) {
  const bf16 *own_keys[STEP], *own_values[STEP];
  for (int i = 0; i < STEP; i++) {
    own_keys[i] = begin + i < end ? keys + (begin + i) * dim : nothing;
    own_values[i] = begin + i < end ? values + (begin + i) * dim : nothing;
  }
  turn_keys(own_keys, dim, turned_keys + begin * dim);
  turn_values(own_values, dim, turned_values + begin * TILE, positions * TILE);
}

// Scores become weights that sum to 1, and zeros behind them up to a multiple of 16.
static void softmax(float *scores, long count) {
  long whole = up_to(count, WIDTH);
  for (long i = count; i < whole; i++) scores[i] = -__builtin_inff();
  floats most = load(scores), total = {0};
  for (long i = WIDTH; i < whole; i += WIDTH) most = larger(load(scores + i), most);
  float largest = most[0];
  for (int i = 1; i < WIDTH; i++) largest = most[i] > largest ? most[i] : largest;
  for (long i = 0; i < whole; i += WIDTH) {
    floats weight = exponential(load(scores + i) - largest);
    store(scores + i, weight);
    total += weight;
  }
  float scale = 1.f / sum(total);
  for (long i = 0; i < whole; i += WIDTH) store(scores + i, load(scores + i) * scale);
}

// Values of what a row sees from position base on are added, a step at a time, to the sums of its group of queries: weights and sums
// are the first's, the next one's lie a stride or 16 floats further. seen: which of the new rows, those left out that all see.
static void add_own(
    const float *weights, long stride, int group, int whole, const bf16 *values, int dim, long base, long shared, long length, long end,
    const uint8_t *seen, float *sums
) {
  bf16 narrowed[LANES * STEP] __attribute__((aligned(64))) = {0}, turned[WIDEST * STEP] __attribute__((aligned(64)));
  float c[2 * LANES * TILE] __attribute__((aligned(64))) = {0};
  const bf16 *own[STEP];
  int count = 0, padded = up_to(group, ALIKE);
  for (long p = base, step = base; p < end || count; p++) {
    if (p >= end) own[count++] = nothing;
    else if (p < shared || seen[p - length]) own[count++] = values + p * dim;
    if (count < STEP) continue;
    turn_values(own, dim, turned, STEP * TILE);
    for (int g = 0; g < group; g++)
      for (int i = 0; i < STEP; i += WIDTH) narrow(narrowed + g * STEP + i, load(weights + g * stride + step + i));
    for (int d = 0; d < dim; d += STEP) {  // apart from other rows' sums: a number that is none would reach them
      float *first = sums + d * whole, *second = first + whole * TILE;
      memcpy(c, first, 4 * group * TILE);
      memcpy(c + padded * TILE, second, 4 * group * TILE);
      product(narrowed, padded, STEP, turned + d * STEP, turned + (d + TILE) * STEP, 1, c);
      memcpy(first, c, 4 * group * TILE);
      memcpy(second, c + padded * TILE, 4 * group * TILE);
    }
    step += STEP, count = 0;
  }
}

// Rows [from, to) of a request's new rows behind length committed positions; queries [row][group][dim] lie scaled. mask [rows][rows]
// says which rows see which; none: every row sees every row. A row's group * dim outputs lie at out + out_stride * row.
// scores and weights: room for a stride a query, stride for every position and 32 more.
static void attend(
    const bf16 *queries, int from, int to, int rows, int group, int dim, const bf16 *turned_keys, const bf16 *turned_values, long positions,
    const bf16 *values, long length, const uint8_t *mask, bf16 *out, long out_stride, float *scores, bf16 *weights, long stride
) {
  int count = (to - from) * group, whole = up_to(count, ALIKE);
  float sums[LANES * WIDEST] __attribute__((aligned(64)));
  long end = length + rows;
  for (long p = 0; p < end; p += STEP) {
    product(queries + (long)from * group * dim, whole, dim, turned_keys + p * dim, turned_keys + (p + TILE) * dim, 0, sums);
    for (int q = 0; q < count; q++) {
      store(scores + q * stride + p, load(sums + q * TILE));
      store(scores + q * stride + p + TILE, load(sums + (whole + q) * TILE));
    }
  }
  int common = mask ? 0 : rows;  // new rows that all of these see, from the first on
  for (int row = from; common < rows; row = row + 1 < to ? row + 1 : (common++, from))
    if (!mask[(long)row * rows + common]) break;
  long shared = length + common, base = common < rows ? shared / STEP * STEP : up_to(shared, STEP);
  for (int q = 0; q < count; q++) {
    float *mine = scores + q * stride;
    long filled = shared;
    for (int j = common; j < rows; j++)
      if (mask[(long)(from + q / group) * rows + j]) mine[filled++] = mine[length + j];
    softmax(mine, filled);
    for (long i = up_to(filled, WIDTH); i < base || i % STEP; i += WIDTH) store(mine + i, all(0));
    for (long i = 0; i < base; i += WIDTH) narrow(weights + q * base + i, load(mine + i));
  }
  for (int d = 0; d < dim; d += STEP) {
    const bf16 *first = turned_values + d * positions, *second = first + positions * TILE;
    product(weights, whole, base, first, second, 0, sums + d * whole);
  }
  for (int row = from; row < to && common < rows; row++) {
    int lane = (row - from) * group;
    const uint8_t *seen = mask + (long)row * rows;
    add_own(scores + lane * stride, stride, group, whole, values, dim, base, shared, length, end, seen, sums + lane * TILE);
  }
  for (int q = 0; q < count; q++)
    for (int d = 0; d < dim; d += WIDTH) {
      const float *sum = sums + d / STEP * STEP * whole + (d % STEP / TILE * whole + q) * TILE;
      narrow(out + q / group * out_stride + q % group * dim + d, load(sum));
    }
}
