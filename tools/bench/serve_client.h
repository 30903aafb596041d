#ifndef FASTDECODE_TOOLS_BENCH_SERVE_CLIENT_H_
#define FASTDECODE_TOOLS_BENCH_SERVE_CLIENT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tools/bench/serve_answer.h"

namespace fastdecode::serve_bench {

// Where a server is: http://HOST[:PORT][/PREFIX] or unix:PATH.
struct ServerUrl {
  std::string host, port;  // empty with a unix_path
  std::string unix_path;
  std::string prefix;  // what comes before /v1/...: empty, or it begins with / and ends without

  std::string Text() const;
};
// Throws Error naming --url.
ServerUrl ParseServerUrl(const std::string& text);

// A server that has been found.
struct Server {
  ServerUrl url;
  std::string api_key;        // empty: none is sent
  std::vector<char> address;  // a sockaddr
  double timeout_s = 600;     // of one request, from its start to the end of its answer
  std::string user_agent = "fastdecode-bench-serve";
};
// The key that --api-key-file names, the file's first line; empty without a path. Throws Error naming the file.
std::string ReadApiKey(const std::string& path);
// Takes the first of the host's addresses that a connection can be made to. Throws Error naming --url.
Server FindServer(const ServerUrl& url, const std::string& api_key, double timeout_s);

// Seconds that a server gets to take a connection.
inline constexpr double kConnectTimeoutS = 10;

// What comes before the body of a request.
std::string RequestHead(const Server& server, const char* method, const std::string& path, size_t body_bytes);
// What to do about an answer of this status, behind an error; empty: nothing is known.
std::string StatusHint(int status);
// The body of a GET. Throws Error naming the URL, if it is not answered with 200.
std::string Get(const Server& server, const std::string& path);

struct LoadRequest {
  std::string body;           // of a POST to /v1/completions
  int64_t prompt_tokens = 0;  // 0: only the server knows
  int64_t output_tokens_max = 0;
};

struct LoadOptions {
  int concurrency = 1;
  bool stream = true;
  bool keep_text = false;
  std::function<bool()> is_interrupted;               // asked some times a second; the run then ends
  std::function<void(size_t ended)> report_progress;  // called some times a second, if set
};

struct LoadRun {
  std::vector<RequestResult> results;  // one for each request, in their order
  int64_t start_ns = 0, end_ns = 0;    // CLOCK_MONOTONIC
  int64_t cpu_ns = 0;                  // what this thread spent of it
  int64_t connections = 0;             // those made
};

// Sends all requests, in their order, so that `concurrency` are in flight: as one ends, the next begins on the same
// connection, which is made again where the server closed it. Runs in this thread and starts none.
LoadRun RunClosedLoop(const Server& server, const std::vector<LoadRequest>& requests, const LoadOptions& options);

}  // namespace fastdecode::serve_bench

#endif  // FASTDECODE_TOOLS_BENCH_SERVE_CLIENT_H_
