/* embed_c MODEL [OPTION=VALUE ...]: says what it was linked with, loads a model, and tells two stories at once. */
#include <fastdecode/fastdecode.h>
#include <stdio.h>
#include <string.h>

static int fail(fd_status* status) {
  fprintf(stderr, "embed_c: error %d: %s\n", (int)fd_status_code(status), fd_status_message(status));
  fd_status_destroy(status);
  return 1;
}

/* Prints what comes of two prompts, by one thread that takes the events of both. */
static fd_status* tell(fd_engine* engine) {
  static const char* const prompts[] = {"Once upon a time", "The little dog"};
  char stories[2][4096] = {"", ""};
  for (size_t i = 0; i < 2; ++i) {
    fd_request request;
    fd_request_init(&request, sizeof(request));
    fd_default_sampling(engine, &request);
    request.prompt = prompts[i];
    request.prompt_bytes = strlen(prompts[i]);
    request.max_tokens = 20;
    request.temperature = 0;
    request.user = stories[i];
    uint64_t id;
    fd_status* const status = fd_submit(engine, &request, &id);
    if (status != NULL) return status;
  }
  fd_event events[64];
  for (int running = 2; running > 0;) {
    events[0].struct_size = sizeof(fd_event);
    const int count = fd_poll(engine, events, 64, -1);
    for (int i = 0; i < count; ++i) {
      char* const story = events[i].user;
      strncat(story, events[i].text, sizeof(stories[0]) - strlen(story) - 1);
      if (events[i].kind == FD_EVENT_FINISHED) --running;
    }
  }
  for (size_t i = 0; i < 2; ++i) printf("%s%s\n", prompts[i], stories[i]);
  return NULL;
}

int main(int argc, char** argv) {
  fd_option_info option;
  option.struct_size = sizeof(option);
  size_t count = 0;
  while (fd_option_at(count, &option) == 1) ++count;
  printf("version %s, ABI %u of %u, %zu options\n", fd_version(), (unsigned)fd_abi_version(), (unsigned)FD_ABI_VERSION,
         count);
  fflush(stdout);
  if (argc < 2) return 2;

  fd_options* options = fd_options_create();
  fd_status* status = fd_options_set(options, "model", argv[1]);
  for (int i = 2; i < argc && status == NULL; ++i) {
    char* const equals = strchr(argv[i], '=');
    if (equals == NULL) return 2;
    *equals = 0;
    status = fd_options_set(options, argv[i], equals + 1);
  }
  fd_engine* engine = NULL;
  if (status == NULL) status = fd_engine_create(options, &engine);
  fd_options_destroy(options);
  if (status != NULL) return fail(status);
  status = tell(engine);
  fd_engine_destroy(engine);
  return status == NULL ? 0 : fail(status);
}
