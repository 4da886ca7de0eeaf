// The likeliest tokens of rows of logits, with their log-probabilities: one reading for the largest, one for the sum.
#include <math.h>
#include "vectors.h"

enum { TOGETHER = 8 * WIDTH };  // logits that are passed over together where none is large enough

static inline int any(ints yes) {
  for (int half = WIDTH / 2; half; half /= 2)
    for (int i = 0; i < half; i++) yes[i] |= yes[i + half];
  return yes[0];
}

// The first of kept values that is smaller: equal ones stay in the order in which they came.
static int place_of(float value, const float *best, int kept) {
  while (kept && value > best[kept - 1]) kept--;
  return kept;
}

static void of_row(const bf16 *logits, long vocab, int width, int64_t *ids, float *best) {
  int kept = 0;
  for (long begin = 0; begin < vocab; begin += TOGETHER) {
    long end = begin + TOGETHER < vocab ? begin + TOGETHER : vocab;
    if (kept == width && end == begin + TOGETHER) {
      floats most = widen(logits + begin);
      for (long i = begin + WIDTH; i < end; i += WIDTH) most = larger(most, widen(logits + i));
      if (!any(most > best[width - 1])) continue;
    }
    for (long i = begin; i < end; i++) {
      float value = one(logits[i]);
      if (kept == width && !(value > best[width - 1])) continue;
      kept += kept < width;
      int place = place_of(value, best, kept - 1);
      memmove(best + place + 1, best + place, sizeof *best * (kept - 1 - place));
      memmove(ids + place + 1, ids + place, sizeof *ids * (kept - 1 - place));
      best[place] = value, ids[place] = i;
    }
  }
  floats total = {0};
  long i = 0;
  for (; i + WIDTH <= vocab; i += WIDTH) total += exponential(widen(logits + i) - best[0]);
  float rest = 0;
  for (; i < vocab; i++) rest += expf(one(logits[i]) - best[0]);
  float log_of_sum = best[0] + logf(sum(total) + rest);
  for (int k = 0; k < width; k++) best[k] -= log_of_sum;
}

// logits [rows][vocab] -> ids and log-probabilities [rows][width] of the width likeliest, of equal ones the smaller id first.
void candidates(const bf16 *logits, int64_t rows, int64_t vocab, int width, int64_t *ids, float *logprobs, int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
  for (int64_t row = 0; row < rows; row++) of_row(logits + row * vocab, vocab, width, ids + row * width, logprobs + row * width);
}
