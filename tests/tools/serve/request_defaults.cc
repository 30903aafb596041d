#include "tests/tools/serve/request_defaults.h"

// An engine's library has this function; tests of what only reads requests link none.
extern "C" void fd_request_init(fd_request* request, size_t bytes) {
  *request = DocumentedDefaults();
  request->struct_size = static_cast<uint32_t>(bytes);
}
