/* FastDecode: the C interface of the engine. Everything that the engine does for others is reachable through this header;
 * fastdecode.hpp is a header-only C++ layer over it, and fastdecode_bench.h has what only measuring needs.
 * docs/EMBEDDING.md is the guide.
 *
 * An engine loads one model and serves any number of requests at once (continuous batching). Whoever submits a request
 * does not wait for its answer; its tokens come back as events. Every accepted request ends with exactly one
 * FD_EVENT_FINISHED event, or, where it asks for several answers, with one for each of them.
 *
 * Versions: from FD_ABI_VERSION 3 on, a program that was compiled against an older header runs with every later library.
 * Functions, constants and fields at the end of structs are added, and nothing is changed or removed. Every struct that
 * grows begins with struct_size, which says what its caller knows: the init functions set it, or the caller does, in an
 * array in the first element for all of them. The library gives fields that a smaller struct lacks their defaults, and
 * never writes behind a struct's end. A struct from a newer caller is larger: as input it is accepted while the bytes that
 * this library does not know are 0, and otherwise refused by its name; as output, these bytes become 0. FD_ABI_VERSION, and
 * the soname with it, changes only if this promise is broken; fd_version says what a library has.
 *
 * Threads: every function may be called from any thread, except that a handle must not be used during or after its destroy
 * function, and but for what fd_log_sink says. Two callbacks are ever called: the log sink, and fd_synth.progress, by
 * the thread in fd_synthesize. Several engines may live in one process. The only global state is which of its GPUs an engine
 * uses, and which thread has its turn on a core that threads share. The engine's own threads are pinned; the caller's threads and
 * signals are left alone. An engine does not survive fork(): the child must not use its handle.
 *
 * No environment variable is read here, but libraries below read theirs: oneDNN (ONEDNN_MAX_CPU_ISA, ONEDNN_VERBOSE),
 * CUDA, and OpenMP's runtime, which comes with oneDNN. With OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY it binds the
 * thread that loads it to some cores, and an engine or worker finds no others: it warns then.
 *
 * GPUs (option spart): one serves one engine of a process at a time; another that is to use it is refused with
 * FD_ALREADY_EXISTS, or runs on the CPU with spart auto, until the first one is destroyed (for good, if that had given
 * it up: docs/GPU.md). While an engine lives, nobody else in its process may allocate, pin, register or free memory
 * with CUDA on its GPU: CUDA may let that wait for the engine's steps, and their launches for that, until requests end
 * with errors (option gpu-wait-ms). Creating an engine with more than 6 micro-batches sets the environment variable
 * CUDA_DEVICE_MAX_CONNECTIONS if it is not set: no other thread may use the environment meanwhile.
 */
#ifndef FASTDECODE_FASTDECODE_H_
#define FASTDECODE_FASTDECODE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FD_ABI_VERSION 3
uint32_t fd_abi_version(void);      /* FD_ABI_VERSION of the library that is linked */
const char* fd_version(void);       /* "0.1.0" */

/* ---- Errors. A function that can fail returns NULL for success, or a status that the caller destroys. */
typedef enum fd_code {
  FD_OK = 0,
  FD_INVALID_ARGUMENT = 3,    /* the message names file or field, and value */
  FD_NOT_FOUND = 5,
  FD_ALREADY_EXISTS = 6,      /* such as a socket path in use */
  FD_PERMISSION_DENIED = 7,
  FD_RESOURCE_EXHAUSTED = 8,  /* memory, threads; or a full queue: try again later */
  FD_FAILED_PRECONDITION = 9, /* such as a worker with another model shape */
  FD_INTERNAL = 13,
  FD_UNAVAILABLE = 14         /* a worker cannot be reached, the engine is stopping */
} fd_code;
typedef struct fd_status fd_status;
fd_code fd_status_code(const fd_status* status);          /* FD_OK for NULL */
const char* fd_status_message(const fd_status* status);   /* "" for NULL; lives as long as the status */
void fd_status_destroy(fd_status* status);                /* NULL allowed */

/* What functions that return a number may return instead. */
#define FD_TIMEOUT 0
#define FD_UNKNOWN_REQUEST (-1)
#define FD_NO_MEMORY (-2)
#define FD_BAD_STRUCT_SIZE (-3)     /* a struct_size that is none: not 16 to 65536 bytes, or no multiple of 8 */

/* ---- Options: named values. Numbers, choices, endpoints and faults are checked when set; lists of cores, devices and
 * files, and what goes with what, when an engine or worker is created. fd_option_at lists them all with defaults and
 * help. */
typedef struct fd_options fd_options;
typedef struct fd_option_info {
  uint32_t struct_size;        /* set by the caller: sizeof(fd_option_info) */
  const char* name;            /* "max-context" */
  const char* value_name;      /* "TOKENS" */
  const char* default_value;   /* "" = decided at start */
  const char* help;            /* one sentence, unit included */
} fd_option_info;
int fd_option_at(size_t index, fd_option_info* out);      /* 1; 0: past the end; FD_BAD_STRUCT_SIZE: that of *out */
fd_options* fd_options_create(void);
void fd_options_destroy(fd_options* options);
fd_status* fd_options_set(fd_options* options, const char* name, const char* value);
/* Takes one message at a time, without a newline, on the thread that has something to say: one of the engine's own, or
 * one that is in a function of this header. It must not call what waits for these threads: fd_drain, fd_forget, fd_next
 * or fd_poll with a timeout other than 0, fd_worker_run, the destroy functions of engine and worker; and it should be
 * quick: the thread goes on when it returns. */
typedef void (*fd_log_sink)(void* user, int level /* 0 debug, 1 info, 2 warning, 3 error */, const char* message);
void fd_options_set_log(fd_options* options, fd_log_sink sink, void* user, int level_min);

/* What a model's folder holds, as JSON whose fields docs/MODELS.md names: the architecture, each kind of layer once,
 * parameters, bytes of weights and of KV, the tokenizer, the chat template, and what is not supported. No weights are
 * read, and no engine is needed; a model that fd_engine_create would refuse is described, too. memory_bytes: what fits
 * into so much memory; 0: nothing of that. FD_NOT_FOUND, FD_INVALID_ARGUMENT: there is no config.json, or it is not JSON.
 * Free *json with fd_string_free. */
fd_status* fd_model_inspect(const char* model, uint64_t memory_bytes, char** json);

/* ---- Engine. Creating one loads the model, takes memory, starts threads and connects to the workers. */
typedef struct fd_engine fd_engine;
fd_status* fd_engine_create(const fd_options* options, fd_engine** out);
/* Cancels what is left, waits for the threads, frees everything. */
void fd_engine_destroy(fd_engine* engine);
/* What was found and chosen, for people: cores, memory, ISA, homes, links. Free with fd_string_free. */
char* fd_engine_describe(const fd_engine* engine);
/* Counters since the last reset, as JSON (docs/GLOSSARY.md names the fields). Free with fd_string_free. */
char* fd_engine_stats_json(const fd_engine* engine);
void fd_engine_stats_reset(fd_engine* engine);
typedef struct fd_stats {
  uint32_t struct_size;             /* set by the caller: sizeof(fd_stats) */
  uint32_t homes;                   /* that the engine was told of... */
  uint32_t homes_up;                /* ...and that are connected now */
  uint32_t draining;                /* 1: fd_drain was called */
  /* Requests now: submitted and in no step yet, in steps, and with events that nobody has taken. Where some ask for several
   * answers, more of them may be said to be in steps than are; choices_waiting and choices_running are exact. */
  uint64_t requests_waiting;
  uint64_t requests_running;
  uint64_t requests_undelivered;
  /* Since the engine was created; a reset leaves these alone. */
  uint64_t requests_submitted;      /* and accepted */
  uint64_t requests_refused;        /* for a full queue */
  uint64_t finished_stop;           /* by how they ended: fd_finish; of several answers the one that ended last counts */
  uint64_t finished_length;
  uint64_t finished_cancelled;
  uint64_t finished_error;
  uint64_t finished_deadline;
  uint64_t prompt_tokens;           /* of accepted requests */
  uint64_t generated_tokens;        /* announced in events */
  uint64_t preemptions;
  uint64_t steps;                   /* of any micro-batch */
  uint64_t rows;                    /* query tokens of these steps */
  uint64_t hops;
  uint64_t s_busy_ns;               /* in S-Part stages */
  uint64_t kv_pages;                /* of the homes that are up */
  uint64_t kv_pages_used;           /* of these, by this engine's sequences, as it counts them itself */
  uint64_t now_ns;                  /* engine clock (CLOCK_MONOTONIC): when this was read */
  uint64_t created_ns;              /* the same clock: when the engine was ready */
  uint64_t last_step_ns;            /* the same clock: when a step ended last; 0: none has */
  uint64_t recoveries;              /* how often a request's home was lost, so that it is computed again elsewhere... */
  uint64_t recovered;               /* ...and how often it was again where it had been */
  /* The answers of the requests now: those that are in no step and have not ended, and those that are in steps. */
  uint64_t choices_waiting;
  uint64_t choices_running;
  uint64_t prefix_tokens;           /* since the engine was created: of prompts that were looked up among what is kept of others
                                     * (option prefix-cache)... */
  uint64_t cached_tokens;           /* ...and of these, those whose KV was found */
  uint64_t kv_pages_cached;         /* now, besides kv_pages_used: those that only requests have left which have ended; any of
                                     * them goes where a page is needed and none is free */
} fd_stats;
/* Fills in *out. Never blocks on the model or a home. 0: done; FD_BAD_STRUCT_SIZE: that of *out; FD_NO_MEMORY. */
int fd_engine_stats(const fd_engine* engine, fd_stats* out);
typedef struct fd_home_stats {
  uint32_t struct_size;             /* set by the caller: sizeof(fd_home_stats) */
  uint32_t up;                      /* 1: connected now */
  const char* name;                 /* as in the log: "local, node 0", "hostb:7471, home 1"; "hostb:7471" until a worker has
                                     * come for the first time; lives as long as the engine */
  /* Since the engine was created; a reset leaves these alone. Of a home that is attended to within the
   * S-Part's stages, a GPU's or one without threads of its own (--core-plan shared), the first three are 0. */
  uint64_t hops;                    /* that it has answered */
  uint64_t work_ns;                 /* that it was at work on these, by its own clock */
  uint64_t last_reply_ns;           /* engine clock: when the engine saw its last reply; 0: none yet */
  uint64_t losses;                  /* how often it was lost, when its requests have left it; not: it was told to end and had none */
  uint64_t kv_pages;                /* 0 while it is not up */
  uint64_t kv_pages_used;           /* of these, by this engine's sequences, as it counts them itself */
  uint64_t cached_tokens;           /* since the engine was created: tokens of prompts whose KV was found here */
  uint64_t kv_pages_cached;         /* besides kv_pages_used, those that only requests have left which have ended; 0 while it is
                                     * not up */
} fd_home_stats;
/* Fills in *out for home number `index`, from 0. There may be more homes later (option homes-min), behind those that
 * there are. 1; 0: past the end; FD_BAD_STRUCT_SIZE: that of *out. Never blocks on a home. */
int fd_engine_home(const fd_engine* engine, size_t index, fd_home_stats* out);
/* What the engine takes the time of, each time since it was created; a reset leaves these alone. */
typedef enum fd_duration {
  FD_DURATION_RECOVERY = 1,         /* from the loss of a request's home until all that was stored there is stored again */
  FD_DURATION_RECOVERY_QUEUE = 2,   /* of that, until it had a home again */
  FD_DURATION_LOSS_DETECTION = 3    /* from a home's last sign of life, with something to do, until it was known to be lost */
} fd_duration;
/* Sets at_most[i] to how many of them took bounds_ns[i] at most, for each of `count` bounds, and returns how many there were
 * in all; 0: none, or the library knows no such `duration`. They are counted to within 3.2 %, and so is their sum, *sum_ns
 * (may be NULL). Never blocks. */
uint64_t fd_engine_durations(const fd_engine* engine, int duration, const uint64_t* bounds_ns, size_t count,
                             uint64_t* at_most, uint64_t* sum_ns);
/* The cores that the engine left to its caller's threads (option front-cores): writes up to `capacity` of them and
 * returns how many there are, or 0. */
size_t fd_engine_front_cores(const fd_engine* engine, int32_t* cores, size_t capacity);
/* KV pages of each home, used, free and held, as the home counted them last, and how long ago: JSON (docs/GLOSSARY.md).
 * Homes count when they go idle, and at most every 100 ms while they work. Never blocks. Free with fd_string_free. */
char* fd_engine_pages_json(fd_engine* engine);
void fd_string_free(char* text);

/* ---- Tokens and text. */
int32_t fd_vocab_size(const fd_engine* engine);
int32_t fd_max_context(const fd_engine* engine);
uint32_t fd_max_choices(const fd_engine* engine);         /* the largest fd_request.n: 128, or what the options prefill-chunk and
                                                           * max-queue leave of it */
int fd_has_tokenizer(const fd_engine* engine);            /* 0: text in and out is refused, token ids work */
const char* fd_tokenizer_missing_reason(const fd_engine* engine);
/* A piece of a prompt. What users typed is given with special = 0, so that nobody can write a special token by its
 * name; what the program wrote around it, such as a chat template's text, with special = 1. */
typedef struct fd_prompt_part {
  uint32_t struct_size;             /* set by the caller: sizeof(fd_prompt_part) */
  int special;                      /* 1: special tokens in the text become their ids; 0: they are text like any other, and so
                                     * are those that the model does not call special but its chat template spells */
  const char* text;
  size_t text_bytes;
  const int32_t* ids;               /* used instead of text if not NULL, as they are */
  size_t id_count;
  int joins;                        /* 1: its text goes on with that of the part before it, and both are tokenised as one text,
                                     * in which a special token is one only if all of it comes from parts with special = 1; 0:
                                     * it is tokenised for itself, as is text behind ids */
  uint32_t reserved;                /* 0 */
} fd_prompt_part;
/* The ids of all parts, between what the tokenizer's template puts around a text (such as bos)
 * if add_special_tokens is not 0. Writes up to `capacity` ids and sets *count to how many there are. */
fd_status* fd_tokenize(const fd_engine* engine, const fd_prompt_part* parts, size_t part_count, int add_special_tokens,
                       int32_t* ids, size_t capacity, size_t* count);
/* The text of all but special tokens, such as bos, which are left out. Free with fd_string_free. */
fd_status* fd_detokenize(const fd_engine* engine, const int32_t* ids, size_t count, char** text, size_t* text_bytes);
/* The same with special tokens in the text. */
fd_status* fd_detokenize_special(const fd_engine* engine, const int32_t* ids, size_t count, char** text,
                                 size_t* text_bytes);
/* The bytes that a token stands for inside of a text, often not UTF-8 by themselves; a special token's name. Writes up to
 * `capacity` of them and returns how many there are; 0: none, as the id is no token, there is no tokenizer, or no memory. */
size_t fd_token_bytes(const fd_engine* engine, int32_t id, char* bytes, size_t capacity);
/* The model and its tokenizer, as JSON: model (the option's path), architecture, vocab_size, max_context (the engine's),
 * stop_token_ids (what ends an answer, unless ignore_eos says otherwise); tokenizer_file, bos_token, bos_token_id,
 * eos_token, eos_token_id (null: none), and add_bos_token, add_eos_token: whether the tokenizer puts these around a text.
 * docs/GLOSSARY.md has more of each. Free with fd_string_free. */
char* fd_model_describe(const fd_engine* engine);

/* ---- Requests. An array may be NULL if its count is 0. */
typedef struct fd_logit_bias {
  int32_t token;
  float bias;
} fd_logit_bias;

typedef struct fd_request {
  uint32_t struct_size;             /* set by fd_request_init */
  /* Prompt: parts, if part_count is not 0; else token ids (used as they are), if prompt_ids is not NULL; else text, in
   * which special tokens become their ids. Copied by fd_submit, as is all that the other pointers point to. */
  int add_special_tokens;           /* of text and parts; 1: as the tokenizer's template says (bos) */
  const char* prompt;
  size_t prompt_bytes;
  const int32_t* prompt_ids;
  size_t prompt_id_count;
  const fd_prompt_part* parts;
  size_t part_count;
  void* user;                       /* comes back in each event; NULL */
  /* How many, and how long. */
  uint64_t deadline_ns;             /* engine clock (CLOCK_MONOTONIC): the request ends then with FD_FINISH_DEADLINE; 0: none */
  uint32_t max_tokens;              /* generated tokens at most; 16. 0 with prompt_logprobs alone: nothing is generated */
  uint32_t min_tokens;              /* no stop before so many; stop strings are looked for in the text after them; 0 */
  int ignore_eos;                   /* 0 */
  int include_stop;                 /* 1: the stop string is part of the text; 0 */
  const int32_t* stop_token_ids;    /* beside the model's own */
  size_t stop_token_id_count;
  const char* const* stop;          /* stop strings, end the text before themselves */
  size_t stop_count;
  /* Sampling. Defaults: temperature 1, the rest off; fd_default_sampling sets what the model's makers recommend. */
  uint64_t seed;                    /* a request's tokens depend on this and its logits alone */
  float temperature;                /* 0: greedy */
  int32_t top_k;                    /* 0: off */
  float top_p;                      /* [1e-6, 1]; 1: off */
  float min_p;                      /* [0, 1]; 0: off */
  float repetition_penalty;         /* 1: off */
  float presence_penalty;           /* 0: off */
  float frequency_penalty;          /* 0: off */
  int32_t logprobs;                 /* -1: none; 0: of each chosen token; n: also of the n most likely, <= 20 */
  int32_t prompt_logprobs;          /* the same of the prompt's tokens, in one FD_EVENT_PROMPT before the first token; -1 */
  uint32_t reserved;                /* 0 */
  const fd_logit_bias* logit_bias;  /* in any order, each token once */
  size_t logit_bias_count;
  int show_special;                 /* 1: special tokens are part of the answer's text, for stop strings, too; but stop tokens are
                                     * in no event; 2: the same for the sake of fd_chat_read_event, which leaves out those
                                     * that mark nothing; 0 */
  uint32_t reserved2;               /* 0 */
  int pause_events;                 /* 1: FD_EVENT_PAUSED comes as well; 0 */
  uint32_t reserved3;               /* 0 */
  uint32_t n;                       /* answers, sampled from one prompt, which is computed once: fd_event.choice says whose an event
                                     * is. Choice i has seed + i, and is what a request of its own with that seed would get; at
                                     * most fd_max_choices; 1 */
  /* KV of prompts and answers that have ended is kept while there is room (option prefix-cache), and a prompt that begins
   * alike is not computed again. It changes when a first token comes, which tells whoever measures it what others have
   * asked: a salt keeps apart what must not be known of each other. */
  int no_prefix_cache;              /* 1: nothing that is kept is used for it, and nothing of it is kept; 0 */
  const char* cache_salt;           /* what is kept is for requests with the same bytes here alone, 4,096 at most; NULL: none */
  size_t cache_salt_bytes;
} fd_request;
/* The defaults. `bytes`: sizeof(fd_request). */
void fd_request_init(fd_request* request, size_t bytes);
/* Sets temperature, top_k, top_p, min_p and repetition_penalty to what the model folder's generation_config.json says of
 * them, and leaves the others alone. "do_sample": false is temperature 0. 0; FD_BAD_STRUCT_SIZE: that of *request, or it
 * uses fields of a newer library. */
int fd_default_sampling(const fd_engine* engine, fd_request* request);
/* What is wrong with it whatever the model is: pointers, lengths, sampling, stop strings; for callers who want to know before
 * they load one. fd_submit checks it too. */
fd_status* fd_request_check(const fd_request* request);

/* Never blocks on the model, but with the S-Part on a GPU: a request's penalties, bias and stop tokens take pinned
 * memory there, which ended requests leave to others. When more is needed than ever before, this waits for the rest
 * of the steps that run, which last until --hop-timeout-ms where a home hangs. FD_RESOURCE_EXHAUSTED: as many
 * requests wait or run as the option max-queue allows, each of several answers counted, or there is no memory for one more;
 * try again later. Whoever polls may have events of the request before this has returned its id, and knows it by its `user`. */
fd_status* fd_submit(fd_engine* engine, const fd_request* request, uint64_t* id);
/* The request ends soon, with FD_FINISH_CANCELLED unless it ended before; of several answers, all that have not ended. Unknown
 * ids are ignored. */
void fd_cancel(fd_engine* engine, uint64_t id);

/* ---- Chat: messages become a prompt as the model's chat template says, which comes from the option chat-template, the
 * folder's chat_template.jinja or its tokenizer_config.json. docs/CHAT.md says what templates may do. */
int fd_has_chat_template(const fd_engine* engine);        /* 0: fd_chat_render is refused */
const char* fd_chat_template_missing_reason(const fd_engine* engine); /* and what to do about it; "" if there is one */

typedef struct fd_chat_input {
  uint32_t struct_size;             /* set by fd_chat_input_init */
  int add_generation_prompt;        /* 1: the prompt ends where the assistant's answer begins; 1 */
  int continue_final_message;       /* 1: the prompt ends with the last message's text, and the answer goes on with it; not together
                                     * with add_generation_prompt; 0 */
  uint32_t reserved;                /* 0 */
  /* JSON, UTF-8. messages: an array of objects with role and content, which is text, null, or an array of
   * {"type": "text", "text": ...}; what else the model's template reads, such as tool_calls or reasoning_content, is passed on.
   * tools, documents: arrays; variables: an object of further values for the template. NULL: none. */
  const char* messages;
  size_t messages_bytes;
  const char* tools;
  size_t tools_bytes;
  const char* documents;
  size_t documents_bytes;
  const char* variables;
  size_t variables_bytes;
  int64_t now_s;                    /* the time that the template is told, in seconds since 1970; < 0: the clock's; -1 */
} fd_chat_input;
void fd_chat_input_init(fd_chat_input* input, size_t bytes);

/* A rendered chat. It lives until it is destroyed, needs no engine, and any thread may read it. */
typedef struct fd_chat fd_chat;
/* Any thread. FD_INVALID_ARGUMENT: the input, by the name of its field, or what the template says of it; FD_FAILED_PRECONDITION:
 * there is no template; FD_RESOURCE_EXHAUSTED: the template needs more steps, memory or time than it may. */
fd_status* fd_chat_render(const fd_engine* engine, const fd_chat_input* input, fd_chat** out);
void fd_chat_destroy(fd_chat* chat);
/* The prompt. All parts are text and join; special = 1 in those that the template's author wrote, so that nothing in the
 * input can become a special token. They belong to the chat. */
const fd_prompt_part* fd_chat_parts(const fd_chat* chat, size_t* count);
/* Sets the request's parts, add_special_tokens, and, where special tokens mark a model's reasoning, show_special to 2 if it
 * is 0. The chat must live until fd_submit has returned. 0; FD_BAD_STRUCT_SIZE: that of *request. */
int fd_chat_set_prompt(const fd_chat* chat, fd_request* request);

/* Renders any template, for people who write them. `name` is what errors call it; context_json is an object of all its
 * variables; now_s as in fd_chat_input. FD_INVALID_ARGUMENT: an error in either, with its line and column. Free *text with
 * fd_string_free. */
fd_status* fd_template_render(const char* name, const char* source, size_t source_bytes, const char* context_json,
                              size_t context_bytes, int64_t now_s, char** text, size_t* text_bytes);

/* ---- Events. */
typedef enum fd_event_kind {
  FD_EVENT_TOKEN = 1,               /* a token; its text may be empty (half a character, a held back stop string) */
  FD_EVENT_FINISHED = 2,            /* the last event of a choice, and so of a request with one; it may carry the last held back
                                     * text. A request with n choices has ended with the n-th of these */
  FD_EVENT_PROMPT = 3,              /* the logprobs of the prompt's tokens, if the request asked for them: once, and before the
                                     * first token of any choice */
  FD_EVENT_PAUSED = 4               /* the answer's home was lost, and it is computed again elsewhere, if the request asked to
                                     * be told: the next event of the same choice says that it goes on, or how it ended. A caller
                                     * with FD_UNDELIVERED_MAX events to take is not told */
} fd_event_kind;
typedef enum fd_finish {
  FD_FINISH_STOP = 1,               /* a stop token, which is in no event and not counted, or a stop string */
  FD_FINISH_LENGTH = 2,
  FD_FINISH_CANCELLED = 3,
  FD_FINISH_ERROR = 4,
  FD_FINISH_DEADLINE = 5            /* the request's deadline_ns has passed */
} fd_finish;

typedef struct fd_token_logprob {
  int32_t token;
  float logprob;
} fd_token_logprob;

/* Where the time of a request's steps went. The places add up to total_ns, and queue_ns and the two totals to the time from
 * its submission to the end of its last step. This struct never changes. */
typedef struct fd_step_times {
  uint64_t steps;
  uint64_t total_ns;                /* from the end of one step, or from joining, to the end of the next */
  uint64_t s_ns;                    /* S-Part stages but the last */
  uint64_t wait_ns;                 /* for the S-Part, a core or the next step, while others had them */
  uint64_t home_ns;                 /* the slowest home of each hop at work */
  uint64_t wire_ns;                 /* the rest of each hop */
  uint64_t boundary_ns;             /* steps composed, tokens judged, homes told */
  uint64_t sampling_ns;             /* the last stage: logits and sampling */
} fd_step_times;
typedef struct fd_request_times {
  uint32_t struct_size;             /* what the library has filled in: no more may be read */
  uint32_t preemptions;             /* its KV went to make room for another request, and was computed again */
  uint64_t queue_ns;                /* submitted, or preempted, or its home lost, and in no step yet; a deadline that ends it
                                     * while it waits again leaves that wait out */
  fd_step_times prefill;            /* steps that computed tokens of the prompt, or known tokens again */
  fd_step_times decode;             /* the others */
  uint64_t recovery_ns;             /* of all that: from each loss of its home until all that had been stored there was stored
                                     * again, or the request ended; an end by a deadline or a stop string leaves out the last */
  uint32_t recoveries;              /* its home was lost, and it was computed again elsewhere */
  uint32_t reserved;
} fd_request_times;

/* Bytes of a text, from begin to before end. This struct never changes. */
typedef struct fd_text_range {
  size_t begin, end;
} fd_text_range;

typedef struct fd_event {
  uint32_t struct_size;             /* set by the caller: sizeof(fd_event) */
  int32_t kind;                     /* fd_event_kind; later libraries may have more */
  uint64_t id;                      /* of the request */
  void* user;                       /* as in the request */
  uint32_t choice;                  /* which of the request's n answers, from 0. PROMPT: 0, and the prompt is that of all */
  /* TOKEN: one token, or several where a caller has fallen behind (FD_UNDELIVERED_MAX). PROMPT: the prompt. */
  uint32_t token_index;             /* of tokens[0]: 0 for the first generated one */
  const int32_t* tokens;
  uint32_t token_count;
  uint32_t top_logprob_count;       /* for each token */
  const float* logprobs;            /* [token_count]; NULL if not asked for. PROMPT: NaN for the first token, which has none */
  const fd_token_logprob* top_logprobs; /* [token_count][top_logprob_count], most likely first; NULL if none. Token -1 where there
                                     * is none: PROMPT, for the first token; and where the vocabulary has no more */
  const char* text;                 /* UTF-8; a 0 byte follows, and may be part of it, too */
  size_t text_bytes;
  int32_t finish;                   /* FINISHED: fd_finish; later libraries may have more */
  int32_t stop_index;               /* FINISHED with FD_FINISH_STOP: which of the request's stop strings; -1: none, a token */
  int32_t stop_token;               /* FINISHED with FD_FINISH_STOP: the stop token; -1: none, a string */
  uint32_t prompt_tokens;           /* FINISHED */
  uint32_t generated_tokens;        /* FINISHED: as many as TOKEN events had */
  uint32_t reserved;
  const char* error;                /* FINISHED with FD_FINISH_ERROR: what happened, naming the home; else "" */
  uint64_t submit_ns;               /* engine clock (CLOCK_MONOTONIC): when the request was submitted */
  uint64_t time_ns;                 /* engine clock: when the (last) token's step ended; PAUSED: when the loss was known */
  const fd_request_times* times;    /* FINISHED */
  const fd_text_range* special;     /* what of text special tokens wrote, in order and apart; the text of one may be cut by a stop
                                     * string, and go on in the next event */
  uint32_t special_count;
  int hides_special;                /* 1: the request has show_special = 2 */
  int32_t home;                     /* PAUSED: which home was lost, as fd_engine_home counts them; else -1 */
  uint32_t reserved2;
  uint32_t cached_tokens;           /* FINISHED: of prompt_tokens, those whose KV other requests had computed when this one joined
                                     * its first step; the same for all choices */
  uint32_t reserved3;
} fd_event;

/* So many events of a request wait at most for a caller who does not take them, and for each choice one more and its
 * FD_EVENT_FINISHED. The tokens that come then are added to the last one of their choice that waits. */
#define FD_UNDELIVERED_MAX 1024

/* The next event of one request, waiting up to timeout_ns (< 0: for ever). 1: *out is filled in; else FD_TIMEOUT;
 * FD_UNKNOWN_REQUEST: never heard of or forgotten, or its last event was taken, which is the FD_EVENT_FINISHED of the choice
 * that ended last; FD_BAD_STRUCT_SIZE: that of *out. Those of a choice come in order, and choices take turns. Pointers
 * in *out live until the next call for the same request, or until its fd_forget. One thread at a time per request. */
int fd_next(fd_engine* engine, uint64_t id, fd_event* out, int64_t timeout_ns);
/* Up to `capacity` events of any requests, 4,096 at most, waiting up to timeout_ns (< 0: for ever) for the first one. Returns how many;
 * FD_TIMEOUT; FD_NO_MEMORY or FD_BAD_STRUCT_SIZE, and nothing was taken. Each choice's events come in order, and requests
 * take turns. Pointers live until the next fd_poll of this engine, and a request is forgotten whose last event was taken
 * here, the FD_EVENT_FINISHED of its only choice or of the n-th. One thread at a time. It takes the events of every request,
 * so an engine's callers use fd_poll or fd_next, and not both. */
int fd_poll(fd_engine* engine, fd_event* out, size_t capacity, int64_t timeout_ns);
/* For event loops (epoll, Asio, libuv, asyncio): a file descriptor that is readable while an event of any request waits.
 * Take them with fd_poll and timeout 0. It is the engine's, which closes it when it is destroyed: nobody else reads, writes
 * or closes it. -1, with errno set: the process has no descriptor left. */
int fd_engine_event_fd(fd_engine* engine);
/* Drops a request's events; cancels it if it still runs. Pointers from fd_next end with it, those from fd_poll are valid until
 * the next fd_poll. With fd_next, each request needs it, or one more fd_next after its last event: otherwise its memory is
 * kept until the engine is destroyed. */
void fd_forget(fd_engine* engine, uint64_t id);

/* Takes one answer to a chat apart into reasoning (such as what stands in <think>...</think>) and content. One a choice; one
 * thread at a time. It does not need the chat any more. */
typedef struct fd_chat_reader fd_chat_reader;
fd_chat_reader* fd_chat_reader_create(const fd_chat* chat);  /* NULL: no memory */
typedef struct fd_chat_piece {
  uint32_t struct_size;             /* set by the caller: sizeof(fd_chat_piece) */
  int in_reasoning;                 /* 1: where the text that has come so far ends, the model is reasoning */
  const char* reasoning;            /* UTF-8, as are the texts of events; lives until the next call */
  size_t reasoning_bytes;
  const char* content;              /* the same; comes after the reasoning where there are both */
  size_t content_bytes;
} fd_chat_piece;
/* What an event adds to either; FD_EVENT_FINISHED brings what was held back, which is what may be the beginning of a mark.
 * Marks that are special tokens are known by these, whatever a text spells, and special tokens that mark nothing are left
 * out of an event that has hides_special. 0; FD_BAD_STRUCT_SIZE: that of either struct; FD_NO_MEMORY. */
int fd_chat_read_event(fd_chat_reader* reader, const fd_event* event, fd_chat_piece* out);
/* The same for a text of which nobody knows what special tokens wrote: what spells a mark is one, and all else stays.
 * `last` = 1: nothing follows. */
int fd_chat_read(fd_chat_reader* reader, const char* text, size_t text_bytes, int last, fd_chat_piece* out);
void fd_chat_reader_destroy(fd_chat_reader* reader);

/* No further submit is accepted. Returns when every request has ended, or when timeout_ns (< 0: for ever) has passed: how
 * many are left. May be called again. */
size_t fd_drain(fd_engine* engine, int64_t timeout_ns);

/* ---- Worker: the process that serves this host's NUMA nodes as homes. */
typedef struct fd_worker fd_worker;
fd_status* fd_worker_create(const fd_options* options, fd_worker** out);
char* fd_worker_describe(const fd_worker* worker);
/* Serves until fd_worker_stop or fd_worker_drain, which may be called from a signal handler. */
fd_status* fd_worker_run(fd_worker* worker);
void fd_worker_stop(fd_worker* worker);
/* As fd_worker_stop, but the engines are told first, and bring no more sequences: fd_worker_run returns when none has a
 * sequence here any more, or after the option grace-s; what is still here then is computed again elsewhere. A later
 * fd_worker_stop ends it at once. */
void fd_worker_drain(fd_worker* worker);
void fd_worker_destroy(fd_worker* worker);

/* ---- Recording: where the time of every step went. The engine writes binary events into rings of its threads while somebody
 * reads them, and nothing otherwise. Any number of readers here, and eight in other processes of the same user. */
typedef enum fd_record_kind {
  FD_RECORD_COMPOSE = 1, /* a step is put together: rows, count = sequences */
  FD_RECORD_ROSTERS = 2, /* until the homes' rosters are out */
  FD_RECORD_SHARE = 3,   /* a moment: what `home` has of the step. rows; count = tokens attended to, bytes = their
                          * KV, of one layer */
  FD_RECORD_STAGE = 4,   /* S-Part stage `layer`, 0 to layers; rows */
  FD_RECORD_STAGE_PART =
      5,                  /* a part of it, in order: `part`, fd_stage_part; `layer` is the one whose weights it reads */
  FD_RECORD_POST = 6,     /* the hops of `layer` posted to all homes; count = homes */
  FD_RECORD_HOP = 7,      /* one hop to `home`, from its posting until the reply was seen; the home's own times */
  FD_RECORD_FINISH = 8,   /* sampled tokens judged: ends with the step. count = tokens */
  FD_RECORD_HELD = 9,     /* a micro-batch could not begin a step since the desk had not taken its events */
  FD_RECORD_IDLE = 10,    /* no micro-batch had a row; part = 1: parked */
  FD_RECORD_JOIN = 11,    /* sequence `id` enters a micro-batch at `home`; start = when it was submitted (or was
                           * preempted or lost its home: part = 1; or left another micro-batch, just now: part = 2),
                           * end = now. rows = prompt tokens */
  FD_RECORD_TOKEN = 12,   /* a moment: token number `count` (from 0) of sequence `id`, as its step ends */
  FD_RECORD_LEAVE = 13,   /* a moment: sequence `id` leaves; part: fd_record_leave. count = tokens generated */
  FD_RECORD_DELIVER = 14, /* desk: token number `count` of `id`, from its step's end until a caller can take it */
  FD_RECORD_SUBMIT = 15   /* desk: request `id`, from when it was submitted until the pipeline has it. rows =
                           * prompt tokens */
} fd_record_kind;
typedef enum fd_stage_part {
  FD_STAGE_QKV = 1,                 /* GEMM */
  FD_STAGE_O = 2,                   /* GEMM */
  FD_STAGE_GATE_UP = 3,             /* GEMM and activation */
  FD_STAGE_DOWN = 4,                /* GEMM */
  FD_STAGE_LOGITS = 5,              /* GEMM and sampling; `layer` is the number of layers */
  FD_STAGE_SIGNAL = 6,              /* of a GPU: from when the host lets a stage go on until the GPU does, and from its saying that
                                     * the stage is over until the host sees it; two a stage, split by a relation of their clocks */
  FD_STAGE_REST = 7,                /* never recorded: what the others leave of a stage, which is embedding, gathering o,
                                     * residuals, norms, rotation, writing q, k, v */
  FD_STAGE_ATTEND = 8               /* attention at homes without threads of their own, before o is gathered; `layer` is the one that
                                     * attends */
} fd_stage_part;
typedef enum fd_record_leave {
  FD_LEAVE_FINISHED = 1,  /* by a stop token or its length */
  FD_LEAVE_CANCELLED = 2, /* by its caller */
  FD_LEAVE_FAILED = 3,
  FD_LEAVE_PREEMPTED = 4, /* it comes back */
  FD_LEAVE_STOPPED = 5,   /* by a stop string, which the desk finds a step or more behind: the answer ended with
                           * the last token that was delivered */
  FD_LEAVE_MOVED = 6,     /* to another micro-batch, which it joins */
  FD_LEAVE_HOME_LOST = 7  /* its home was lost: it waits again, and is computed again. No moment: start = when that was
                           * known, end = when it left */
} fd_record_leave;

typedef struct fd_record_event {
  uint32_t struct_size;             /* set by the caller: sizeof(fd_record_event) */
  uint32_t step;                    /* of the micro-batch, from 1 (its low 32 bits) */
  uint64_t start_ns, end_ns;        /* engine clock; equal for a moment */
  uint64_t id;                      /* sequence: the id of its request */
  uint64_t bytes;                   /* SHARE: KV; HOP: q, k, v out and o back */
  uint32_t rows;
  uint32_t count;
  uint16_t layer;
  uint16_t part;
  int16_t home;                     /* -1: none */
  uint8_t kind;                     /* fd_record_kind */
  uint8_t micro_batch;
  /* HOP alone; durations are the home's own, on its own clock, to within 0.05 %. work is from the hop seen at the home to
   * its reply ready: prepare + append + attend + merge + wait. */
  uint64_t polled_ns;               /* engine clock: the last time the pipeline looked for replies of this home in vain; 0: not
                                     * since the hop was posted. The reply came after it */
  uint64_t home_end_ns;             /* home's clock: the reply is ready. Known modulo 2^32 ns only: given as the value nearest
                                     * to end_ns, so that home_end_ns - end_ns is the clocks' difference modulo 2^32 ns */
  uint32_t idle_ns;                 /* polled in vain before it saw the hop; 0: it was busy, and the hop may have waited */
  uint32_t prepare_ns;              /* roster awaited, pages and plan of the step */
  uint32_t append_ns;               /* k and v to pages (leader's share) */
  uint32_t attend_ns;               /* attention (leader's share) */
  uint32_t merge_ns;                /* of several hands: partials merged, o written (leader's share) */
  uint32_t wait_ns;                 /* leader done, others of its team not yet */
  uint32_t post_ns;                 /* posting the home's reply before this one */
  uint32_t reserved;
} fd_record_event;

typedef struct fd_record fd_record;
/* A reader of an engine of this process: recording is on until it is closed, which must be before the engine ends. */
fd_status* fd_record_open(fd_engine* engine, fd_record** out);
/* Of another process: its pid, or the path of the socket that its option `record-socket` names. FD_NOT_FOUND: no such process or
 * socket; FD_FAILED_PRECONDITION: that process is no engine, or one of another version; FD_PERMISSION_DENIED; FD_UNAVAILABLE: it is
 * ending, or has eight readers. */
fd_status* fd_record_attach(const char* pid_or_socket, fd_record** out);
/* What is recorded, as JSON: versions, process, model, homes, cores, clock; of each home's link what it stands on: link_device
 * ("mlx5_0 port 1"; "": memory) and link_gbit_per_s, its rate each way (0: not known). Free with fd_string_free. */
char* fd_record_describe(const fd_record* record);
/* Takes up to `capacity` events, out[0].struct_size bytes each, those of each thread about in order of their ends; returns how many there were, or
 * FD_BAD_STRUCT_SIZE. Never blocks. Rings
 * hold a second or so: *lost (may be NULL) grows by the events that were overwritten before they were read. *ended (may be NULL)
 * becomes 1 once the engine has gone. One thread at a time. */
int fd_record_read(fd_record* record, fd_record_event* out, size_t capacity, uint64_t* lost, int* ended);
void fd_record_close(fd_record* record);

#ifdef __cplusplus
}
#endif

#endif /* FASTDECODE_FASTDECODE_H_ */
