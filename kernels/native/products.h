// Products of a few rows with weights in tiles: 16 outputs by 32 inputs, 1 KiB that is read once, in the order of memory.
//
// A matrix [outputs, inputs] lies as [outputs / 16][inputs / 2][16][2]. A row's product never depends on the rows beside it: each of
// its outputs is summed over the inputs in one order, whatever the number of rows.
#pragma once
#include "vectors.h"

enum { TILE = 16, STEP = 32 };

#ifdef __AMX_BF16__
#include <immintrin.h>

static void tiles_begin(void) {
  struct { uint8_t palette, start, reserved[14]; uint16_t row_bytes[16]; uint8_t rows[16]; } shape = {.palette = 1};
  for (int i = 0; i < 8; i++) shape.row_bytes[i] = 64, shape.rows[i] = TILE;
  _tile_loadconfig(&shape);
}
static void tiles_end(void) { _tile_release(); }

#define AHEAD 4096  // bytes of weights that are asked for before they are needed

static inline void ask_for(const bf16 *w) {
  for (int line = 0; line < 1024; line += 64) _mm_prefetch((const char *)w + AHEAD + line, _MM_HINT_T0);
}

enum { ALIKE = TILE };  // rows are multiplied in multiples of it

// c[0] and c[1], each [rows][16]: rows x [rows][inputs] times two blocks of 16 outputs, more to what is there or from zero.
// rows is a multiple of ALIKE.
static void product(const bf16 *x, int rows, int inputs, const bf16 *first, const bf16 *second, int more, float *c) {
  float *next = c + rows * TILE;
  int row = 0;
  for (; row + 2 * TILE <= rows; row += 2 * TILE) {
    if (more) {
      _tile_loadd(0, c + row * TILE, 64); _tile_loadd(1, next + row * TILE, 64);
      _tile_loadd(2, c + (row + TILE) * TILE, 64); _tile_loadd(3, next + (row + TILE) * TILE, 64);
    } else {
      _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    }
    for (int k = 0; k < inputs; k += STEP) {
      const bf16 *left = x + (long)row * inputs + k;
      _tile_loadd(4, left, inputs * 2); _tile_loadd(5, left + (long)TILE * inputs, inputs * 2);
      _tile_loadd(6, first + k * TILE, 64); _tile_loadd(7, second + k * TILE, 64);
      if (!row) {
        ask_for(first + k * TILE);
        ask_for(second + k * TILE);
      }
      _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7); _tile_dpbf16ps(2, 5, 6); _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c + row * TILE, 64); _tile_stored(1, next + row * TILE, 64);
    _tile_stored(2, c + (row + TILE) * TILE, 64); _tile_stored(3, next + (row + TILE) * TILE, 64);
  }
  if (row < rows) {
    if (more) {
      _tile_loadd(0, c + row * TILE, 64); _tile_loadd(1, next + row * TILE, 64);
    } else {
      _tile_zero(0); _tile_zero(1);
    }
    for (int k = 0; k < inputs; k += STEP) {
      _tile_loadd(4, x + (long)row * inputs + k, inputs * 2);
      _tile_loadd(6, first + k * TILE, 64); _tile_loadd(7, second + k * TILE, 64);
      if (!row) {
        ask_for(first + k * TILE);
        ask_for(second + k * TILE);
      }
      _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7);
    }
    _tile_stored(0, c + row * TILE, 64); _tile_stored(1, next + row * TILE, 64);
  }
}
#else
static void tiles_begin(void) {}
static void tiles_end(void) {}

#ifdef __AVX512BF16__
#include <immintrin.h>

enum { ALIKE = 1, TOGETHER = 8 };  // TOGETHER: rows that share what is read of the weights

// Pairs of inputs at a time, as bf16: products in fp32, subnormal numbers as zeros.
static inline __attribute__((always_inline)) void rows_of_blocks(
    const int count, const bf16 *x, int inputs, const bf16 *first, const bf16 *second, int more, float *c, float *next
) {
  __m512 sums[TOGETHER], others[TOGETHER];
  for (int i = 0; i < count; i++) {
    sums[i] = more ? _mm512_loadu_ps(c + i * TILE) : _mm512_setzero_ps();
    others[i] = more ? _mm512_loadu_ps(next + i * TILE) : _mm512_setzero_ps();
  }
  for (int k = 0; k < inputs; k += 2) {
    __m512bh weights = (__m512bh)_mm512_loadu_si512(first + k * TILE), fellows = (__m512bh)_mm512_loadu_si512(second + k * TILE);
    for (int i = 0; i < count; i++) {
      int pair;
      memcpy(&pair, x + (long)i * inputs + k, sizeof pair);
      __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
      sums[i] = _mm512_dpbf16_ps(sums[i], both, weights);
      others[i] = _mm512_dpbf16_ps(others[i], both, fellows);
    }
  }
  for (int i = 0; i < count; i++) {
    _mm512_storeu_ps(c + i * TILE, sums[i]);
    _mm512_storeu_ps(next + i * TILE, others[i]);
  }
}

static void product(const bf16 *x, int rows, int inputs, const bf16 *first, const bf16 *second, int more, float *c) {
  for (int row = 0, count; row < rows; row += count) {
    count = row + TOGETHER <= rows ? TOGETHER : row + TOGETHER / 2 <= rows ? TOGETHER / 2 : 1;
    const bf16 *left = x + (long)row * inputs;
    float *sums = c + row * TILE, *next = c + (rows + row) * TILE;
    if (count == TOGETHER) rows_of_blocks(TOGETHER, left, inputs, first, second, more, sums, next);
    else if (count > 1) rows_of_blocks(TOGETHER / 2, left, inputs, first, second, more, sums, next);
    else rows_of_blocks(1, left, inputs, first, second, more, sums, next);
  }
}
#else
#ifdef __AVX512F__
enum { PIECE = 16 };  // floats of a register: a compiler keeps sums of wider vectors in memory
#else
enum { PIECE = 8 };
#endif
enum { ALIKE = 1, TOGETHER = 4, PIECES = TILE / PIECE };  // TOGETHER: rows that share what is read of the weights
typedef float piece __attribute__((vector_size(4 * PIECE), aligned(4)));
typedef uint32_t piece_words __attribute__((vector_size(4 * PIECE), aligned(4)));

static inline __attribute__((always_inline)) void rows_of_block(
    const int count, const float *x, int inputs, const bf16 *w, int more, float *c
) {
  piece sums[TOGETHER][PIECES] = {0};
  for (int i = 0; more && i < count; i++)
    for (int p = 0; p < PIECES; p++) sums[i][p] = *(const piece *)(c + i * TILE + p * PIECE);
  for (int k = 0; k < inputs; k += 2)
    for (int p = 0; p < PIECES; p++) {
      piece_words pair = *(const piece_words *)(w + k * TILE + 2 * p * PIECE);
      piece even = (piece)(pair << 16), odd = (piece)(pair & 0xffff0000u);
      for (int i = 0; i < count; i++) {
        sums[i][p] += x[(long)i * inputs + k] * even;
        sums[i][p] += x[(long)i * inputs + k + 1] * odd;
      }
    }
  for (int i = 0; i < count; i++)
    for (int p = 0; p < PIECES; p++) *(piece *)(c + i * TILE + p * PIECE) = sums[i][p];
}

static void product(const bf16 *x, int rows, int inputs, const bf16 *first, const bf16 *second, int more, float *c) {
  float wide[TOGETHER * (long)inputs + 1];
  for (int row = 0, count; row < rows; row += count, c += count * TILE) {
    count = row + TOGETHER <= rows ? TOGETHER : 1;
    for (long i = 0; i < (long)count * inputs; i += WIDTH) store(wide + i, widen(x + (long)row * inputs + i));
    for (int block = 0; block < 2; block++) {
      const bf16 *w = block ? second : first;
      float *sums = c + block * rows * TILE;
      if (count == TOGETHER) rows_of_block(TOGETHER, wide, inputs, w, more, sums);
      else rows_of_block(1, wide, inputs, w, more, sums);
    }
  }
}
#endif
#endif
