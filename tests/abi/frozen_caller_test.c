/* A program that was compiled when ABI 3 began: it knows the frozen header alone, and must run with every later
 * library.
 *
 * usage: frozen_caller_test MODEL, the folder tests/golden/transformers/gqa, whose greedy tokens transformers computed.
 */
#include <poll.h>
#include <string.h>

#include "c_check.h"
#include "fastdecode_abi3.h"

#define TOKENS 24

/* Of goldens.json: the first 17 tokens of its prompt, and how they go on. */
static const int32_t kPrompt[] = {96, 91, 25, 104, 78, 65, 81, 21, 37, 42, 115, 112, 6, 88, 61, 124, 18};
static const int32_t kAnswer[TOKENS] = {34,  49, 110, 84, 66, 19,  100, 123, 112, 113, 117, 49,
                                        112, 23, 65,  66, 17, 104, 79,  107, 104, 84,  66,  17};
#define PROMPT_TOKENS (sizeof(kPrompt) / sizeof(kPrompt[0]))
#define EVENTS 8

static const int64_t kPatienceNs = 120000000000; /* more than any answer takes on a busy machine */

/* One request's answer so far. */
typedef struct Answer {
  uint64_t id;
  uint32_t tokens;
  int finished;
} Answer;

/* A struct, and behind it what nobody may write to. */
static const unsigned char kCanary[16] = {0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

static fd_engine* MakeEngine(const char* model) {
  fd_options* options = fd_options_create();
  const char* const values[][2] = {{"model", model},         {"compute", "f32"},
                                   {"homes", "local:1"},     {"hop-timeout-ms", "60000"},
                                   {"record-socket", "off"}, {"poll", "yield"}};
  for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); ++i) {
    CHECK_OK(fd_options_set(options, values[i][0], values[i][1]));
  }
  fd_status* status = fd_options_set(options, "no-such-option", "1");
  CHECK(fd_status_code(status) == FD_INVALID_ARGUMENT);
  CHECK(strstr(fd_status_message(status), "no-such-option") != NULL);
  fd_status_destroy(status);
  fd_engine* engine = NULL;
  CHECK_OK(fd_engine_create(options, &engine));
  fd_options_destroy(options);
  return engine;
}

static fd_request GreedyRequest(void* user) {
  fd_request request;
  fd_request_init(&request, sizeof(request));
  CHECK(request.struct_size == sizeof(request));
  CHECK(request.temperature == 1 && request.top_p == 1 && request.repetition_penalty == 1);
  CHECK(request.logprobs == -1 && request.prompt_logprobs == -1);
  request.prompt_ids = kPrompt;
  request.prompt_id_count = PROMPT_TOKENS;
  request.temperature = 0;
  request.ignore_eos = 1;
  request.max_tokens = TOKENS;
  request.logprobs = 2;
  request.user = user;
  return request;
}

/* Of a TOKEN or FINISHED event of a request for all of kAnswer. */
static void Take(const fd_event* event, Answer* answer) {
  CHECK(event->id == answer->id);
  CHECK(event->user == answer);
  CHECK(event->choice == 0);
  CHECK(!answer->finished);
  if (event->kind == FD_EVENT_TOKEN) {
    CHECK(event->token_index == answer->tokens);
    CHECK(event->token_count >= 1 && answer->tokens + event->token_count <= TOKENS);
    CHECK(memcmp(event->tokens, kAnswer + answer->tokens, event->token_count * sizeof(int32_t)) == 0);
    CHECK(event->top_logprob_count == 2);
    CHECK(event->top_logprobs[0].token == event->tokens[0]);
    CHECK(event->top_logprobs[0].logprob == event->logprobs[0] && event->logprobs[0] < 0);
    CHECK(event->time_ns >= event->submit_ns);
    answer->tokens += event->token_count;
    return;
  }
  CHECK(event->kind == FD_EVENT_FINISHED);
  CHECK(event->finish == FD_FINISH_LENGTH);
  CHECK(event->prompt_tokens == PROMPT_TOKENS);
  CHECK(event->generated_tokens == TOKENS && answer->tokens == TOKENS);
  CHECK(event->stop_index == -1 && event->stop_token == -1);
  CHECK(strcmp(event->error, "") == 0);
  if (event->times != NULL) CHECK(event->times->struct_size >= sizeof(fd_request_times));
  answer->finished = 1;
}

/* A request that is read by itself. */
static void ReadWithNext(fd_engine* engine) {
  struct {
    fd_event event;
    unsigned char canary[sizeof(kCanary)];
  } out = {.event = {.struct_size = sizeof(fd_event)}};
  memcpy(out.canary, kCanary, sizeof(kCanary));
  Answer answer = {0};
  const fd_request request = GreedyRequest(&answer);
  CHECK_OK(fd_submit(engine, &request, &answer.id));
  while (!answer.finished) {
    CHECK(fd_next(engine, answer.id, &out.event, kPatienceNs) == 1);
    CHECK(out.event.struct_size == sizeof(fd_event));
    CHECK(memcmp(out.canary, kCanary, sizeof(kCanary)) == 0);
    Take(&out.event, &answer);
  }
  CHECK(fd_next(engine, answer.id, &out.event, 0) == FD_UNKNOWN_REQUEST);
}

/* Several requests, whose events an event loop takes. */
static void ReadWithPoll(fd_engine* engine) {
  struct {
    fd_event events[EVENTS];
    unsigned char canary[sizeof(kCanary)];
  } out = {.events = {{.struct_size = sizeof(fd_event)}}};
  memcpy(out.canary, kCanary, sizeof(kCanary));
  Answer answers[5] = {{0}};
  const int event_fd = fd_engine_event_fd(engine);
  CHECK(event_fd >= 0 && fd_engine_event_fd(engine) == event_fd);
  for (size_t i = 0; i < 5; ++i) {
    fd_request request = GreedyRequest(&answers[i]);
    fd_prompt_part parts[2] = {{.struct_size = sizeof(fd_prompt_part)}};
    parts[0].ids = kPrompt;
    parts[0].id_count = 7;
    parts[1].ids = kPrompt + 7;
    parts[1].id_count = PROMPT_TOKENS - 7;
    request.parts = i % 2 == 1 ? parts : NULL;
    request.part_count = i % 2 == 1 ? 2 : 0;
    CHECK_OK(fd_submit(engine, &request, &answers[i].id));
  }
  for (int finished = 0; finished < 5;) {
    struct pollfd wait = {.fd = event_fd, .events = POLLIN};
    CHECK(poll(&wait, 1, (int)(kPatienceNs / 1000000)) == 1);
    const int count = fd_poll(engine, out.events, EVENTS, 0);
    CHECK(count >= 1 && count <= EVENTS);
    CHECK(memcmp(out.canary, kCanary, sizeof(kCanary)) == 0);
    for (int i = 0; i < count; ++i) {
      Answer* const answer = out.events[i].user;
      CHECK(answer >= answers && answer < answers + 5);
      Take(&out.events[i], answer);
      finished += answer->finished;
    }
  }
  CHECK(fd_poll(engine, out.events, EVENTS, 0) == FD_TIMEOUT);
}

static void ReadStatistics(fd_engine* engine) {
  struct {
    fd_stats stats;
    unsigned char canary[sizeof(kCanary)];
  } out = {.stats = {.struct_size = sizeof(fd_stats)}};
  memcpy(out.canary, kCanary, sizeof(kCanary));
  CHECK(fd_engine_stats(engine, &out.stats) == 0);
  CHECK(memcmp(out.canary, kCanary, sizeof(kCanary)) == 0);
  CHECK(out.stats.requests_submitted == 6 && out.stats.finished_length == 6);
  CHECK(out.stats.requests_running == 0 && out.stats.requests_waiting == 0 && out.stats.requests_undelivered == 0);
  CHECK(out.stats.prompt_tokens == 6 * PROMPT_TOKENS && out.stats.generated_tokens == 6 * TOKENS);
  CHECK(out.stats.homes == 1 && out.stats.homes_up == 1 && out.stats.draining == 0);
  CHECK(out.stats.created_ns <= out.stats.last_step_ns && out.stats.last_step_ns <= out.stats.now_ns);
}

/* Steps that were recorded while requests ran. */
static void ReadRecord(fd_record* record) {
  fd_record_event events[EVENTS];
  events[0].struct_size = sizeof(fd_record_event);
  uint64_t lost = 0, tokens = 0;
  int ended = 0;
  for (size_t count = 1; count > 0;) {
    count = fd_record_read(record, events, EVENTS, &lost, &ended);
    for (size_t i = 0; i < count; ++i) tokens += events[i].kind == FD_RECORD_TOKEN;
  }
  CHECK(tokens == 6 * TOKENS || lost > 0);
  CHECK(ended == 0);
  fd_record_close(record);
}

static void ReadTheRest(fd_engine* engine) {
  fd_option_info info = {.struct_size = sizeof(info)};
  size_t options = 0;
  for (; fd_option_at(options, &info) == 1; ++options) CHECK(info.name[0] != 0 && info.help[0] != 0);
  CHECK(options > 20);
  CHECK(fd_vocab_size(engine) == 128 && fd_max_context(engine) == 512);
  CHECK(fd_has_tokenizer(engine) == 0 && fd_tokenizer_missing_reason(engine)[0] != 0);
  char* const texts[] = {fd_engine_describe(engine), fd_engine_stats_json(engine), fd_engine_pages_json(engine)};
  for (size_t i = 0; i < 3; ++i) {
    CHECK(texts[i] != NULL && texts[i][0] != 0);
    fd_string_free(texts[i]);
  }
  fd_engine_stats_reset(engine);
  Answer answer = {0};
  fd_request request = GreedyRequest(&answer);
  request.max_tokens = 0;
  fd_status* status = fd_request_check(&request);
  CHECK(fd_status_code(status) == FD_INVALID_ARGUMENT && strstr(fd_status_message(status), "max_tokens") != NULL);
  fd_status_destroy(status);
  request = GreedyRequest(&answer);
  CHECK_OK(fd_submit(engine, &request, &answer.id));
  fd_cancel(engine, answer.id);
  fd_forget(engine, answer.id);
  CHECK(fd_drain(engine, -1) == 0);
  status = fd_submit(engine, &request, &answer.id);
  CHECK(fd_status_code(status) == FD_UNAVAILABLE);
  fd_status_destroy(status);
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  CHECK(fd_abi_version() == FD_ABI_VERSION);
  fd_engine* const engine = MakeEngine(argv[1]);
  fd_record* record = NULL;
  CHECK_OK(fd_record_open(engine, &record));
  ReadWithNext(engine);
  ReadWithPoll(engine);
  ReadStatistics(engine);
  ReadRecord(record);
  ReadTheRest(engine);
  fd_engine_destroy(engine);
  printf("version %s serves ABI %d\n", fd_version(), FD_ABI_VERSION);
  return 0;
}
