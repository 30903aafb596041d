/* FastDecode: what measuring and checking a port need beside fastdecode.h, and no serving program does. The same promises
 * about versions, threads and structs hold. */
#ifndef FASTDECODE_FASTDECODE_BENCH_H_
#define FASTDECODE_FASTDECODE_BENCH_H_

#include <fastdecode/fastdecode.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- What a measured request may have beside fd_request. */
typedef struct fd_bench_request {
  uint32_t struct_size;             /* set by fd_bench_request_init */
  /* The first tokens of the prompt get random KV instead of being computed; not with logits or logprobs of the prompt. 0. */
  uint32_t fill_tokens;
  /* For whoever checks a port: room for [prompt tokens][vocab] float32, filled before the first token; NULL. Stays the
   * caller's, who keeps it until the request's last FD_EVENT_FINISHED or until fd_forget has returned: fd_forget waits then
   * until nothing is written there any more, for the rest of a step of the model, which lasts until --hop-timeout-ms where
   * a home hangs; a log sink must not call it. */
  float* prompt_logits;
  size_t prompt_logits_floats;
} fd_bench_request;
/* The defaults. `bytes`: sizeof(fd_bench_request). */
void fd_bench_request_init(fd_bench_request* request, size_t bytes);
/* As fd_submit. */
fd_status* fd_bench_submit(fd_engine* engine, const fd_request* request, const fd_bench_request* bench, uint64_t* id);

/* ---- Synthetic checkpoints: random weights in a real model's shape, for tests and measuring. */
/* The index-th known shape, such as "tinyllama-1.1b"; NULL past the end. Lives for ever. */
const char* fd_synth_shape_at(size_t index);
typedef struct fd_synth {
  uint32_t struct_size;             /* set by fd_synth_init */
  int layers;                       /* 0: as the shape has */
  const char* shape;                /* one of fd_synth_shape_at */
  uint64_t seed;                    /* equal seeds give equal files; 1 */
  const char* dtype;                /* "bf16", "f16" or "f32"; "bf16" */
  const char* out_dir;              /* made here */
  int k_outliers;                   /* channels of each KV head whose k is larger, and q smaller, by the factor; even; 0 */
  double k_outlier_factor;          /* 1 to 1024; 16 */
  /* May be NULL; returning 0 from it stops and removes everything. */
  int (*progress)(void* user, uint64_t done_bytes, uint64_t total_bytes);
  void* user;
} fd_synth;
/* The defaults. `bytes`: sizeof(fd_synth). */
void fd_synth_init(fd_synth* synth, size_t bytes);
fd_status* fd_synthesize(const fd_synth* synth);

#ifdef __cplusplus
}
#endif

#endif /* FASTDECODE_FASTDECODE_BENCH_H_ */
