// Attention of a request's new rows over its cache, for the query heads that share one key-value head.
//
// A row's scores lie in the order of its sequence: the committed positions, then its ancestors. Sums go over that order, so a row of a
// tree gives to the last bit what the same row gives when its ancestors are committed.
#pragma once
#include "vectors.h"

enum { QUERIES = 4 };  // that read a key or a value together

// Scores of queries [count][dim] with positions [begin, begin + 16) of keys; those behind end are garbage.
static void score_block(const float *queries, int count, int dim, const bf16 *keys, long begin, long end, float *scores, long stride) {
  float turned[256 * WIDTH] __attribute__((aligned(64)));
  for (int i = 0; i < WIDTH; i++) {
    const bf16 *key = keys + (begin + i < end ? begin + i : end - 1) * dim;
    for (int d = 0; d < dim; d++) turned[d * WIDTH + i] = one(key[d]);
  }
  for (int q = 0; q < count; q += QUERIES) {
    floats sums[QUERIES] = {0};
    for (int d = 0; d < dim; d++)
      for (int i = 0; i < QUERIES; i++) sums[i] += queries[(q + i) * dim + d] * load(turned + d * WIDTH);
    for (int i = 0; i < QUERIES; i++) store(scores + (q + i) * stride, sums[i]);
  }
}

// Scores become weights that sum to 1, and zeros behind them up to a multiple of 16.
static void softmax(float *scores, long count) {
  long whole = (count + WIDTH - 1) / WIDTH * WIDTH;
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

// out[QUERIES][dim] += weights[q][i] * values[i], i from begin to end, in this order.
static void add_values(const float *weights, long stride, const bf16 *values, long begin, long end, int dim, float *out) {
  for (int d = 0; d < dim; d += 4 * WIDTH) {
    int parts = dim - d < 4 * WIDTH ? (dim - d) / WIDTH : 4;
    floats sums[QUERIES][4];
    for (int q = 0; q < QUERIES; q++)
      for (int p = 0; p < 4; p++) sums[q][p] = p < parts ? load(out + q * dim + d + p * WIDTH) : all(0);
    if (parts == 4) {
      for (long i = begin; i < end; i++) {
        const bf16 *value = values + i * dim + d;
        floats wide[4] = {widen(value), widen(value + WIDTH), widen(value + 2 * WIDTH), widen(value + 3 * WIDTH)};
        for (int q = 0; q < QUERIES; q++)
          for (int p = 0; p < 4; p++) sums[q][p] += weights[q * stride + i] * wide[p];
      }
    } else {
      for (long i = begin; i < end; i++)
        for (int q = 0; q < QUERIES; q++)
          for (int p = 0; p < parts; p++) sums[q][p] += weights[q * stride + i] * widen(values + i * dim + d + p * WIDTH);
    }
    for (int q = 0; q < QUERIES; q++)
      for (int p = 0; p < parts; p++) store(out + q * dim + d + p * WIDTH, sums[q][p]);
  }
}

// Rows [from, to) of a request's new rows behind length committed positions; queries [row][group][dim] lie scaled, in fp32.
// mask [rows][rows] says which rows see which; none: every row sees every row. A row's group * dim outputs lie at out + out_stride * row.
// scores: room for (queries rounded up to 4) * (stride + rows rounded up to 16), stride for every position and 16 more.
static void attend(
    const float *queries, int from, int to, int rows, int group, int dim, const bf16 *keys, const bf16 *values, long length,
    const uint8_t *mask, bf16 *out, long out_stride, float *scores, long stride
) {
  int count = (to - from) * group, whole = (count + QUERIES - 1) / QUERIES * QUERIES;
  float *fresh = scores + whole * stride;  // scores of the new rows, whoever sees them
  const float *own = queries + (long)from * group * dim;
  long end = length + rows;
  for (long begin = 0; begin < length; begin += WIDTH) score_block(own, count, dim, keys, begin, length, scores + begin, stride);
  long fresh_stride = (rows + WIDTH - 1) / WIDTH * WIDTH;
  for (int begin = 0; begin < rows; begin += WIDTH) score_block(own, count, dim, keys, length + begin, end, fresh + begin, fresh_stride);
  for (int row = from; row < to; row++) {
    const uint8_t *seen = mask ? mask + (long)row * rows : 0;
    for (int g = 0; g < group; g++) {
      int q = (row - from) * group + g;
      float *mine = scores + q * stride;
      long filled = length;
      for (int i = 0; i < rows; i++)
        if (!seen || seen[i]) mine[filled++] = fresh[q * fresh_stride + i];
      softmax(mine, filled);
    }
  }
  for (int q = 0; q < whole; q += QUERIES) {
    float sums[QUERIES * 256] __attribute__((aligned(64))) = {0};
    add_values(scores + q * stride, stride, values, 0, length, dim, sums);
    for (int i = 0; i < QUERIES && q + i < count; i++) {
      int row = from + (q + i) / group;
      const float *weights = scores + (q + i) * stride;
      long filled = length;
      for (int j = 0; j < rows; j++) {
        if (mask && !mask[(long)row * rows + j]) continue;
        float weight = weights[filled++];
        for (int d = 0; d < dim; d += WIDTH)
          store(sums + i * dim + d, load(sums + i * dim + d) + weight * widen(values + (length + j) * dim + d));
      }
      for (int d = 0; d < dim; d += WIDTH)
        narrow(out + (row - from) * out_stride + ((q + i) % group) * dim + d, load(sums + i * dim + d));
    }
  }
}
