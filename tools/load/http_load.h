#ifndef FASTDECODE_TOOLS_LOAD_HTTP_LOAD_H_
#define FASTDECODE_TOOLS_LOAD_HTTP_LOAD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/load/http_client.h"
#include "tools/load/result.h"

namespace fastdecode::load {

struct HttpRequest {
  std::string body;           // of a POST to /v1/completions
  int64_t prompt_tokens = 0;  // 0: only the server knows
  int64_t output_tokens_max = 0;
};

struct HttpLoadOptions {
  bool stream = true;
  bool keep_text = false;
};

// Sends requests in their order, each on a connection that has none, which is made again where the server closed it. In
// a closed loop the next begins as one ends; in an open one at its time, on a new connection where there is need. Runs
// in this thread and starts none. Bounded: an open loop by the process's descriptors, behind which requests wait here.
LoadRun RunHttpLoad(const Server& server, const std::vector<HttpRequest>& requests, const HttpLoadOptions& options,
                    const Pace& pace, const RunHooks& hooks);

}  // namespace fastdecode::load

#endif  // FASTDECODE_TOOLS_LOAD_HTTP_LOAD_H_
