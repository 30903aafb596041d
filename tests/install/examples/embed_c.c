/* embed_c MODEL [OPTION=VALUE ...]: says what it was linked with, and loads a model, or says why not. */
#include <fastdecode/fastdecode.h>
#include <stdio.h>
#include <string.h>

static int fail(fd_status* status) {
  fprintf(stderr, "embed_c: error %d: %s\n", (int)fd_status_code(status), fd_status_message(status));
  fd_status_destroy(status);
  return 1;
}

int main(int argc, char** argv) {
  fd_option_info option;
  size_t count = 0;
  while (fd_option_at(count, &option)) ++count;
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
  printf("the vocabulary has %d tokens\n", (int)fd_vocab_size(engine));
  fd_engine_destroy(engine);
  return 0;
}
