// Sixteen floats at a time, and bf16 as it lies in memory. A compiler makes of them what its machine has.
#pragma once
#include <stdint.h>
#include <string.h>

typedef uint16_t bf16;
typedef float floats __attribute__((vector_size(64), aligned(4)));
typedef int32_t ints __attribute__((vector_size(64), aligned(4)));
typedef uint32_t words __attribute__((vector_size(64), aligned(4)));
typedef uint16_t halves __attribute__((vector_size(32), aligned(2)));

enum { WIDTH = 16 };

static inline floats load(const float *p) { return *(const floats *)p; }
static inline void store(float *p, floats v) { *(floats *)p = v; }
static inline floats all(float x) { return x - (floats){0}; }
static inline float one(bf16 x) {
  uint32_t bits = (uint32_t)x << 16;
  float wide;
  memcpy(&wide, &bits, 4);
  return wide;
}

static inline floats widen(const bf16 *p) { return (floats)(__builtin_convertvector(*(const halves *)p, words) << 16); }

// Each word holds one of even, then one of odd.
static inline words interleave(const bf16 *even, const bf16 *odd) {
  return __builtin_convertvector(*(const halves *)even, words) | __builtin_convertvector(*(const halves *)odd, words) << 16;
}

#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (words){__VA_ARGS__})
#endif

// Sixteen rows of sixteen words: four times each row of the first half is dealt out with its fellow of the second.
static inline void transpose(words *rows) {
  for (int time = 0; time < 4; time++) {
    words dealt[WIDTH];
    for (int i = 0; i < WIDTH / 2; i++) {
      words a = rows[i], b = rows[i + WIDTH / 2];
      dealt[2 * i] = SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      dealt[2 * i + 1] = SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    for (int i = 0; i < WIDTH; i++) rows[i] = dealt[i];
  }
}

// Rounds to the nearest, of two equally near ones to the even one; what is no number stays none.
static inline void narrow(bf16 *p, floats v) {
  words bits = (words)v, numbers = (words)(v == v);
  bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  *(halves *)p = __builtin_convertvector((bits & numbers) | (0x7fc0 & ~numbers), halves);
}

static inline floats pick(ints yes, floats a, floats b) { return (floats)(((ints)a & yes) | ((ints)b & ~yes)); }
static inline floats larger(floats a, floats b) { return pick(a > b, a, b); }

// In a fixed order, so that equal vectors have equal sums.
static inline float sum(floats v) {
  for (int half = WIDTH / 2; half; half /= 2)
    for (int i = 0; i < half; i++) v[i] += v[i + half];
  return v[0];
}

// e^x to 2 units in the last place; 0 below -87, and above 88 what it is there.
static inline floats exponential(floats x) {
  const float shift = 12582912.f;  // 1.5 * 2^23: adding it leaves a whole number in the low bits
  floats kept = larger(x, all(-87.f));
  kept = pick(kept > 88.f, all(88.f), kept);
  floats n = kept * 1.44269504f + shift;
  ints power = (ints)n - (ints)all(shift);
  n -= shift;
  floats r = kept - n * 0.693359375f + n * 2.12194440e-4f, p = all(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
  p = (floats)((ints)p + (power << 23));
  p = pick(x < -87.f, all(0.f), p);
  return pick(x == x, p, x);  // what is no number stays none
}
