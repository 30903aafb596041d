#ifndef FASTDECODE_TESTS_ABI_C_CHECK_H_
#define FASTDECODE_TESTS_ABI_C_CHECK_H_

/* What the tests in C say when something is not as it must be. They end there. */

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      fprintf(stderr, "%s:%d: it is not so: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                      \
    }                                                                               \
  } while (0)

/* That a call had no error, which it prints. */
#define CHECK_OK(call)                                                                     \
  do {                                                                                     \
    fd_status* check_status = (call);                                                      \
    if (check_status != NULL) {                                                            \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, fd_status_message(check_status)); \
      exit(1);                                                                             \
    }                                                                                      \
  } while (0)

#endif /* FASTDECODE_TESTS_ABI_C_CHECK_H_ */
