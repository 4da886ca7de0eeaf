// Linear layers and whole pre-norm decoder layers over a cache, on a CPU, in bf16 with sums in fp32. One call at a time.
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include "attention.h"
#include "products.h"
#include "vectors.h"

static long padded(long rows) { return up_to(rows, ALIKE); }

// Room that stays from call to call.
static void *room(int which, long bytes) {
  static struct { void *at; long bytes; } rooms[10];
  if (rooms[which].bytes < bytes) {
    free(rooms[which].at);
    rooms[which].at = aligned_alloc(64, (bytes + 4095) / 4096 * 4096);
    rooms[which].bytes = rooms[which].at ? bytes : 0;
    if (!rooms[which].at) abort();
  }
  return rooms[which].at;
}

// A thread's part [*from, *to) of count.
static void part(long count, long *from, long *to) {
  long threads = omp_get_num_threads(), thread = omp_get_thread_num();
  *from = count * thread / threads, *to = count * (thread + 1) / threads;
}

static float root_mean_square(const bf16 *x, int width, float eps) {
  floats squares = {0};
  for (int i = 0; i < width; i += WIDTH) squares += widen(x + i) * widen(x + i);
  return 1.f / sqrtf(sum(squares) / width + eps);
}

// Rows from x, normed with a weight where there is one, into out: zeros in the rows up to a multiple of ALIKE.
static void enter(const bf16 *x, const bf16 *weight, long rows, int width, float eps, bf16 *out) {
  long from, to;
  part(padded(rows), &from, &to);
  for (long row = from; row < to; row++) {
    const bf16 *in = x + row * width;
    if (row >= rows) memset(out + row * width, 0, 2L * width);
    else if (!weight) memcpy(out + row * width, in, 2L * width);
    else {
      float scale = root_mean_square(in, width, eps);
      for (int i = 0; i < width; i += WIDTH) narrow(out + row * width + i, widen(in + i) * scale * widen(weight + i));
    }
  }
}

// out [rows][outputs] = x [padded rows][inputs] times w, and the residual where there is one. c: room for 32 floats a row.
static void multiply(const bf16 *x, long rows, int inputs, int outputs, const bf16 *w, const bf16 *residual, bf16 *out, float *c) {
  long from, to, blocks = outputs / TILE, whole = padded(rows);
  part((blocks + 1) / 2, &from, &to);
  for (long pair = from; pair < to; pair++) {
    long first = 2 * pair, count = first + 1 < blocks ? 2 : 1;
    product(x, whole, inputs, w + first * TILE * inputs, w + (first + count - 1) * TILE * inputs, 0, c);
    for (long row = 0; row < rows; row++)
      for (int i = 0; i < count; i++) {
        long at = row * outputs + (first + i) * TILE;
        floats value = load(c + (i * whole + row) * TILE);
        narrow(out + at, residual ? value + widen(residual + at) : value);
      }
  }
}

// out [rows][inner] = silu(gate) * up, w holding the gate's outputs, then the other's.
static void gated(const bf16 *x, long rows, int inputs, int inner, const bf16 *w, bf16 *out, float *c) {
  long from, to, whole = padded(rows);
  part(inner / TILE, &from, &to);
  for (long block = from; block < to; block++) {
    product(x, whole, inputs, w + block * TILE * inputs, w + (inner / TILE + block) * TILE * inputs, 0, c);
    for (long row = 0; row < whole; row++) {
      floats gate = load(c + row * TILE), up = load(c + (whole + row) * TILE);
      narrow(out + row * inner + block * TILE, gate / (1.f + exponential(-gate)) * up);
    }
  }
}

// out [rows][outputs] = x [rows][inputs] times w, after a norm where there is a weight of one.
void linear(
    const bf16 *x, const bf16 *norm, float eps, int64_t rows, int inputs, int outputs, const bf16 *w, bf16 *out, int threads
) {
  bf16 *entered = room(0, 2 * padded(rows) * inputs);
  float *c = room(1, 4L * threads * 2 * padded(rows) * TILE);
#pragma omp parallel num_threads(threads)
  {
    tiles_begin();
    enter(x, norm, rows, inputs, eps, entered);
#pragma omp barrier
    multiply(entered, rows, inputs, outputs, w, 0, out, c + omp_get_thread_num() * 2 * padded(rows) * TILE);
    tiles_end();
  }
}

struct layer {
  int heads, kv_heads, dim, hidden, inner;
  float eps, head_eps;
  const bf16 *attention_norm, *q_norm, *k_norm, *mlp_norm, *qkv, *out, *gate_up, *down;
};

// A head, normed where there is a weight, rotated, and scaled.
static void rotated(const bf16 *x, const bf16 *norm, float eps, int dim, const bf16 *cos, const bf16 *sin, float scale, bf16 *out) {
  float own = norm ? root_mean_square(x, dim, eps) : 1.f;
  int half = dim / 2;
  for (int i = 0; i < half; i += WIDTH) {
    floats first = widen(x + i) * own, second = widen(x + half + i) * own;
    if (norm) first *= widen(norm + i), second *= widen(norm + half + i);
    narrow(out + i, (first * widen(cos + i) - second * widen(sin + i)) * scale);
    narrow(out + half + i, (second * widen(cos + half + i) + first * widen(sin + half + i)) * scale);
  }
}

// y = the layer of x [batch][rows][hidden]; keys and values go into the caches [batch][kv_heads][capacity][dim] behind lengths.
static void decoder_layer(
    const struct layer *l, const bf16 *x, bf16 *y, int64_t batch, int64_t rows, const bf16 *cos, const bf16 *sin, bf16 *keys, bf16 *values,
    int64_t request_stride, int64_t head_stride, const int64_t *lengths, const uint8_t *mask, int threads
) {
  long all_rows = batch * rows, whole = padded(all_rows), longest = 0;
  int group = l->heads / l->kv_heads, dim = l->dim, width = (l->heads + 2 * l->kv_heads) * dim;
  for (long b = 0; b < batch; b++) longest = lengths[b] > longest ? lengths[b] : longest;
  long positions = up_to(longest + rows, STEP), stride = positions + STEP, task = LANES / group;  // rows
  int widest = l->inner > l->heads * dim ? l->inner : l->heads * dim;
  widest = widest > l->hidden ? widest : l->hidden;
  bf16 *entered = room(0, 2 * whole * widest), *qkv = room(2, 2 * whole * width), *middle = room(3, 2 * whole * l->hidden);
  bf16 *attended = room(4, 2 * whole * l->heads * dim), *activated = room(5, 2 * whole * l->inner);
  float *c = room(1, 4L * threads * 2 * whole * TILE), *scores = room(7, 4L * threads * LANES * stride);
  bf16 *queries = room(6, 2 * (all_rows * l->heads + LANES) * dim), *weights = room(8, 2L * threads * LANES * stride);
  bf16 *turned = room(9, 4 * batch * l->kv_heads * positions * dim);  // keys, then values, of each request's heads
#pragma omp parallel num_threads(threads)
  {
    int thread = omp_get_thread_num();
    float *own = c + thread * 2 * whole * TILE;
    tiles_begin();
    enter(x, l->attention_norm, all_rows, l->hidden, l->eps, entered);
#pragma omp barrier
    multiply(entered, all_rows, l->hidden, width, l->qkv, 0, qkv, own);
#pragma omp barrier
    long from, to;
    part(all_rows, &from, &to);
    for (long at = from; at < to; at++) {
      long b = at / rows, row = at % rows;
      const bf16 *in = qkv + at * width;
      for (int h = 0; h < l->heads; h++) {  // [request][kv head][row][group]
        bf16 *out = queries + (((b * l->kv_heads + h / group) * rows + row) * group + h % group) * dim;
        rotated(in + h * dim, l->q_norm, l->head_eps, dim, cos + at * dim, sin + at * dim, 1.f / sqrtf(dim), out);
      }
      for (int h = 0; h < l->kv_heads; h++) {
        long place = b * request_stride + h * head_stride + (lengths[b] + row) * dim;
        rotated(in + (l->heads + h) * dim, l->k_norm, l->head_eps, dim, cos + at * dim, sin + at * dim, 1.f, keys + place);
        memcpy(values + place, in + (l->heads + l->kv_heads + h) * dim, 2L * dim);
      }
    }
    if (!thread) memset(attended + all_rows * l->heads * dim, 0, 2 * (whole - all_rows) * l->heads * dim);
#pragma omp barrier
#pragma omp for schedule(static) collapse(3)
    for (long b = 0; b < batch; b++)
      for (int h = 0; h < l->kv_heads; h++)
        for (long begin = 0; begin < positions; begin += STEP) {
          long place = b * request_stride + h * head_stride, end = lengths[b] + rows;
          bf16 *own = turned + 2 * (b * l->kv_heads + h) * positions * dim;
          if (begin < end) turn(keys + place, values + place, begin, end, dim, positions, own, own + positions * dim);
        }
#pragma omp for schedule(dynamic, 1) collapse(3)
    for (long b = 0; b < batch; b++)
      for (int h = 0; h < l->kv_heads; h++)
        for (long first = 0; first < rows; first += task) {
          long last = first + task < rows ? first + task : rows, head = b * l->kv_heads + h;
          const bf16 *own = turned + 2 * head * positions * dim;
          attend(
              queries + head * rows * group * dim, first, last, rows, group, dim, own, own + positions * dim, positions,
              values + b * request_stride + h * head_stride, lengths[b], mask ? mask + b * rows * rows : 0,
              attended + ((b * rows + first) * l->heads + h * group) * dim, (long)l->heads * dim,
              scores + thread * LANES * stride, weights + thread * LANES * stride, stride
          );
        }
    multiply(attended, all_rows, l->heads * dim, l->hidden, l->out, x, middle, own);
#pragma omp barrier
    enter(middle, l->mlp_norm, all_rows, l->hidden, l->eps, entered);
#pragma omp barrier
    gated(entered, all_rows, l->hidden, l->inner, l->gate_up, activated, own);
#pragma omp barrier
    multiply(activated, all_rows, l->inner, l->hidden, l->down, middle, y, own);
    tiles_end();
  }
}

// The layers one after another: what each makes of x lies in out [count][batch][rows][hidden], and feeds the next.
void decoder_layers(
    const struct layer *const *layers, int count, const bf16 *x, bf16 *out, int64_t batch, int64_t rows, const bf16 *cos, const bf16 *sin,
    bf16 *keys, bf16 *values, int64_t layer_stride, int64_t request_stride, int64_t head_stride, const int64_t *lengths, const uint8_t *mask,
    int threads
) {
  for (int i = 0; i < count; i++) {
    decoder_layer(
        layers[i], x, out, batch, rows, cos, sin, keys + i * layer_stride, values + i * layer_stride, request_stride, head_stride, lengths,
        mask, threads
    );
    x = out;
    out += batch * rows * layers[i]->hidden;
  }
}

// Which of the products above this was compiled with.
const char *products(void) {
#ifdef __AMX_BF16__
  return "AMX";
#elif defined(__AVX512BF16__)
  return "AVX-512 with bf16";
#elif defined(__AVX512F__)
  return "AVX-512";
#elif defined(__AVX2__)
  return "AVX2";
#else
  return "plain";
#endif
}
