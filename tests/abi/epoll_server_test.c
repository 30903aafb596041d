/* A server on one thread: an epoll loop over requests that come through a pipe, the engine's event descriptor, a pipe
 * for the answers, and a timer. The thread waits in epoll_wait and nowhere else: what it calls of the library has a
 * timeout of 0 or none. Two other processes play the clients: one asks as fast as the pipe takes it, the other checks
 * every answer.
 *
 * usage: epoll_server_test MODEL, the folder tests/golden/transformers/gqa, whose greedy tokens transformers computed.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fastdecode/fastdecode.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "c_check.h"

#define REQUESTS 2000
#define PROMPT_TOKENS 17
#define TOKENS_MAX 12
#define EVENTS 64
#define OUTPUT_BYTES_MAX (1 << 16) /* of answers that the pipe has not taken: then no more requests are read */

/* Of goldens.json: the first 17 tokens of its prompt, and how they go on. */
static const int32_t kPrompt[PROMPT_TOKENS] = {96, 91, 25, 104, 78, 65, 81, 21, 37, 42, 115, 112, 6, 88, 61, 124, 18};
static const int32_t kAnswer[TOKENS_MAX] = {34, 49, 110, 84, 66, 19, 100, 123, 112, 113, 117, 49};

/* What goes through the pipes. Both fit into PIPE_BUF many times, so that a pipe has whole ones. */
typedef struct Ask {
  uint32_t number;
  uint32_t rotation; /* the prompt is kPrompt, begun at this token */
  uint32_t max_tokens;
  uint32_t unused;
} Ask;
typedef struct Reply {
  uint32_t number;
  uint32_t finish; /* 0: a token */
  uint32_t index;  /* of the token; of the last reply: how many there were */
  int32_t token;
} Reply;

/* ---- The clients, each a process. */

static Ask AskNumber(uint32_t number) {
  return (Ask){number, number * 7 % PROMPT_TOKENS, 1 + number * 5 % TOKENS_MAX, 0};
}

static void AskAll(int to) {
  for (uint32_t i = 0; i < REQUESTS; ++i) {
    const Ask ask = AskNumber(i);
    CHECK(write(to, &ask, sizeof(ask)) == sizeof(ask));
  }
  exit(0);
}

/* Every request is answered completely and in order, once, and equal prompts alike. */
static void CheckAll(int from) {
  static uint32_t tokens[REQUESTS];
  static int finished[REQUESTS];
  static int32_t right[PROMPT_TOKENS][TOKENS_MAX];
  memset(right, -1, sizeof(right));
  memcpy(right[0], kAnswer, sizeof(kAnswer));
  Reply reply;
  ssize_t got = 0;
  for (int left = REQUESTS; left > 0;) {
    got = read(from, &reply, sizeof(reply));
    CHECK(got == sizeof(reply));
    CHECK(reply.number < REQUESTS && !finished[reply.number]);
    const Ask ask = AskNumber(reply.number);
    CHECK(reply.index == tokens[reply.number]);
    if (reply.finish == 0) {
      CHECK(reply.index < ask.max_tokens);
      int32_t* const token = &right[ask.rotation][reply.index];
      if (*token < 0) *token = reply.token;
      CHECK(*token == reply.token);
      ++tokens[reply.number];
    } else {
      CHECK(reply.finish == FD_FINISH_LENGTH && reply.index == ask.max_tokens);
      finished[reply.number] = 1;
      --left;
    }
  }
  CHECK(read(from, &reply, sizeof(reply)) == 0);
  exit(0);
}

/* ---- The server. */

/* A request that runs. */
typedef struct Running {
  uint32_t number;
  uint32_t tokens;
} Running;

typedef struct Server {
  fd_engine* engine;
  int epoll, requests, events, answers, timer;
  int asked_all; /* the pipe of requests has ended */
  int running;
  Ask refused; /* the queue was full: tried again when a request has ended */
  int has_refused;
  char* output; /* what the pipe of answers has not taken yet */
  size_t output_bytes, output_room;
  uint64_t ticks, refusals;
} Server;

static void Watch(Server* server, int operation, int fd, uint32_t events) {
  struct epoll_event event = {.events = events, .data = {.fd = fd}};
  CHECK(epoll_ctl(server->epoll, operation, fd, &event) == 0);
}

/* Whom to listen to now: requests, while there is room for them; the pipe of answers, while there are some for it. */
static void WatchAgain(Server* server) {
  const int room = !server->asked_all && !server->has_refused && server->output_bytes < OUTPUT_BYTES_MAX;
  if (!server->asked_all) Watch(server, EPOLL_CTL_MOD, server->requests, room ? EPOLLIN : 0);
  Watch(server, EPOLL_CTL_MOD, server->answers, server->output_bytes > 0 ? EPOLLOUT : 0);
}

static void Answer(Server* server, Reply reply) {
  if (server->output_bytes + sizeof(reply) > server->output_room) {
    server->output_room = 2 * server->output_room + sizeof(reply);
    server->output = realloc(server->output, server->output_room);
    CHECK(server->output != NULL);
  }
  memcpy(server->output + server->output_bytes, &reply, sizeof(reply));
  server->output_bytes += sizeof(reply);
}

static void WriteAnswers(Server* server) {
  const ssize_t written = write(server->answers, server->output, server->output_bytes);
  if (written < 0) {
    CHECK(errno == EAGAIN);
    return;
  }
  server->output_bytes -= (size_t)written;
  memmove(server->output, server->output + written, server->output_bytes);
}

/* 0: the queue is full. */
static int Submit(Server* server, const Ask* ask) {
  int32_t prompt[PROMPT_TOKENS];
  for (uint32_t i = 0; i < PROMPT_TOKENS; ++i) prompt[i] = kPrompt[(i + ask->rotation) % PROMPT_TOKENS];
  Running* const running = malloc(sizeof(*running));
  CHECK(running != NULL);
  *running = (Running){ask->number, 0};
  fd_request request;
  fd_request_init(&request, sizeof(request));
  request.prompt_ids = prompt;
  request.prompt_id_count = PROMPT_TOKENS;
  request.temperature = 0;
  request.ignore_eos = 1;
  request.max_tokens = ask->max_tokens;
  request.user = running;
  uint64_t id = 0;
  fd_status* status = fd_submit(server->engine, &request, &id);
  if (fd_status_code(status) == FD_RESOURCE_EXHAUSTED) {
    fd_status_destroy(status);
    free(running);
    return 0;
  }
  CHECK_OK(status);
  ++server->running;
  return 1;
}

static void TakeAsk(Server* server, const Ask* ask) {
  server->has_refused = !Submit(server, ask);
  if (!server->has_refused) return;
  server->refused = *ask;
  ++server->refusals;
}

static void ReadRequests(Server* server) {
  Ask ask;
  while (!server->has_refused) {
    const ssize_t got = read(server->requests, &ask, sizeof(ask));
    if (got < 0 && errno == EAGAIN) return;
    if (got == 0) {
      server->asked_all = 1;
      Watch(server, EPOLL_CTL_DEL, server->requests, 0);
      return;
    }
    CHECK(got == sizeof(ask));
    TakeAsk(server, &ask);
  }
}

static void TakeEvents(Server* server) {
  fd_event events[EVENTS];
  events[0].struct_size = sizeof(fd_event);
  const int count = fd_poll(server->engine, events, EVENTS, 0);
  CHECK(count >= 1); /* the descriptor was readable, and nobody else takes events */
  for (int i = 0; i < count; ++i) {
    const fd_event* const event = &events[i];
    Running* const running = event->user;
    if (event->kind == FD_EVENT_TOKEN) {
      CHECK(event->token_index == running->tokens);
      for (uint32_t t = 0; t < event->token_count; ++t) {
        Answer(server, (Reply){running->number, 0, running->tokens++, event->tokens[t]});
      }
      continue;
    }
    CHECK(event->kind == FD_EVENT_FINISHED && event->generated_tokens == running->tokens);
    Answer(server, (Reply){running->number, event->finish, running->tokens, 0});
    free(running);
    --server->running;
  }
  if (server->has_refused) TakeAsk(server, &server->refused);
}

/* What a server reports now and then. */
static void Tick(Server* server) {
  uint64_t times = 0;
  CHECK(read(server->timer, &times, sizeof(times)) == sizeof(times));
  fd_stats stats = {.struct_size = sizeof(stats)};
  CHECK(fd_engine_stats(server->engine, &stats) == 0);
  CHECK(stats.requests_submitted == stats.requests_running + stats.requests_waiting + stats.finished_length);
  CHECK(stats.requests_submitted + (uint64_t)server->has_refused <= REQUESTS);
  ++server->ticks;
}

static void Serve(Server* server) {
  Watch(server, EPOLL_CTL_ADD, server->requests, EPOLLIN);
  Watch(server, EPOLL_CTL_ADD, server->answers, 0);
  Watch(server, EPOLL_CTL_ADD, server->events, EPOLLIN);
  Watch(server, EPOLL_CTL_ADD, server->timer, EPOLLIN);
  while (!server->asked_all || server->running > 0 || server->output_bytes > 0) {
    struct epoll_event ready[4];
    const int count = epoll_wait(server->epoll, ready, 4, -1);
    CHECK(count >= 1);
    for (int i = 0; i < count; ++i) {
      CHECK((ready[i].events & EPOLLERR) == 0);
      if (ready[i].data.fd == server->requests && !server->asked_all) ReadRequests(server);
      if (ready[i].data.fd == server->events) TakeEvents(server);
      if (ready[i].data.fd == server->timer) Tick(server);
      if (ready[i].data.fd == server->answers) WriteAnswers(server);
    }
    WatchAgain(server);
  }
}

static int Threads(void) {
  DIR* const tasks = opendir("/proc/self/task");
  CHECK(tasks != NULL);
  int threads = 0;
  for (const struct dirent* one; (one = readdir(tasks)) != NULL;) threads += one->d_name[0] != '.';
  closedir(tasks);
  return threads;
}

static fd_engine* MakeEngine(const char* model) {
  fd_options* options = fd_options_create();
  const char* const values[][2] = {
      {"model", model},         {"compute", "f32"}, {"homes", "local:1"}, {"hop-timeout-ms", "60000"},
      {"record-socket", "off"}, {"poll", "yield"},  {"max-queue", "100"}, {"max-context", "64"}};
  for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); ++i) {
    CHECK_OK(fd_options_set(options, values[i][0], values[i][1]));
  }
  fd_engine* engine = NULL;
  CHECK_OK(fd_engine_create(options, &engine));
  fd_options_destroy(options);
  return engine;
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  int requests[2], answers[2];
  CHECK(pipe(requests) == 0 && pipe(answers) == 0);
  const pid_t asking = fork(); /* before there is an engine, which does not survive it */
  CHECK(asking >= 0);
  if (asking == 0) {
    close(requests[0]), close(answers[0]), close(answers[1]);
    AskAll(requests[1]);
  }
  const pid_t checking = fork();
  CHECK(checking >= 0);
  if (checking == 0) {
    close(requests[0]), close(requests[1]), close(answers[1]);
    CheckAll(answers[0]);
  }
  close(requests[1]), close(answers[0]);
  CHECK(fcntl(requests[0], F_SETFL, O_NONBLOCK) == 0 && fcntl(answers[1], F_SETFL, O_NONBLOCK) == 0);

  CHECK(Threads() == 1);
  Server server = {.engine = MakeEngine(argv[1]), .requests = requests[0], .answers = answers[1]};
  const int threads = Threads();
  server.events = fd_engine_event_fd(server.engine);
  server.epoll = epoll_create1(EPOLL_CLOEXEC);
  server.timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  CHECK(server.events >= 0 && server.epoll >= 0 && server.timer >= 0);
  const struct itimerspec each = {{0, 10000000}, {0, 1}};
  CHECK(timerfd_settime(server.timer, 0, &each, NULL) == 0);
  Serve(&server);

  /* Nothing is left: neither an event nor a thread that would not be the engine's. */
  struct pollfd readable = {.fd = server.events, .events = POLLIN};
  CHECK(poll(&readable, 1, 0) == 0);
  fd_event event;
  event.struct_size = sizeof(event);
  CHECK(fd_poll(server.engine, &event, 1, 0) == FD_TIMEOUT);
  CHECK(Threads() == threads);
  fd_stats stats = {.struct_size = sizeof(stats)};
  CHECK(fd_engine_stats(server.engine, &stats) == 0);
  CHECK(stats.requests_submitted == REQUESTS && stats.finished_length == REQUESTS);
  CHECK(stats.requests_refused >= server.refusals);
  CHECK(fd_drain(server.engine, 0) == 0);
  fd_engine_destroy(server.engine);
  CHECK(Threads() == 1);
  close(server.answers);
  int status = 0;
  CHECK(waitpid(asking, &status, 0) == asking && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(waitpid(checking, &status, 0) == checking && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  printf("%d requests, %d of the engine's threads and one of ours, %llu times a full queue, %llu ticks\n", REQUESTS,
         threads - 1, (unsigned long long)server.refusals, (unsigned long long)server.ticks);
  free(server.output);
  close(server.requests), close(server.epoll), close(server.timer);
  return 0;
}
