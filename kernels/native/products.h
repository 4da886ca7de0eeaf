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

// c[0] and c[1], each [rows][16]: rows x [rows][inputs] times two blocks of 16 outputs. rows is a multiple of 16.
static void product(const bf16 *x, int rows, int inputs, const bf16 *first, const bf16 *second, float *c) {
  float *next = c + rows * TILE;
  int row = 0;
  for (; row + 2 * TILE <= rows; row += 2 * TILE) {
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
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
    _tile_zero(0); _tile_zero(1);
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

enum { TOGETHER = 4 };  // rows, whatever their number: TILE is a multiple

static void product_of_block(const bf16 *x, int rows, int inputs, const bf16 *w, float *c) {
  for (int row = 0; row < rows; row += TOGETHER) {
    floats sums[TOGETHER] = {0};
    for (int k = 0; k < inputs; k += 2) {
      words pair = *(const words *)(w + k * TILE);
      floats even = (floats)(pair << 16), odd = (floats)(pair & 0xffff0000u);
      for (int i = 0; i < TOGETHER; i++) {
        const bf16 *left = x + (long)(row + i) * inputs + k;
        sums[i] += one(left[0]) * even;
        sums[i] += one(left[1]) * odd;
      }
    }
    for (int i = 0; i < TOGETHER; i++) store(c + (row + i) * TILE, sums[i]);
  }
}

static void product(const bf16 *x, int rows, int inputs, const bf16 *first, const bf16 *second, float *c) {
  product_of_block(x, rows, inputs, first, c);
  product_of_block(x, rows, inputs, second, c + rows * TILE);
}
#endif
