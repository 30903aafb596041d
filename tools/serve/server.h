#ifndef FASTDECODE_TOOLS_SERVE_SERVER_H_
#define FASTDECODE_TOOLS_SERVE_SERVER_H_

#include <fastdecode/fastdecode.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tools/serve/router.h"
#include "tools/serve/service_manager.h"

namespace fastdecode::serve {

struct ServerOptions {
  ListenOptions listen;
  HttpLimits http;
  RequestLimits requests;
  Admission::Limits queue;
  std::vector<std::string> names;  // of the model, at least one
  std::string root;                // its folder
  std::string api_key_file;        // empty: no keys
  std::string tls_cert, tls_key;   // both or none
  std::vector<std::string> cors_origins;
  std::string access_log = "-";
  uint64_t grace_ns = 30'000'000'000;
  uint64_t health_stall_ns = 30'000'000'000;
  std::string notify_socket;  // $NOTIFY_SOCKET
  uint64_t watchdog_ns = 0;   // how often the service manager wants to hear of it; 0: never
  std::function<void(int level, const std::string& message)> log;  // as fd_log_sink counts levels. Any thread
};

// An HTTP server before an engine. It listens from the start and says that the model is being loaded until it is given
// an engine. SIGTERM and SIGINT end it: it refuses new requests, lets those that run finish for a while, and then cuts
// them; a signal that comes a second or more after the first cuts them at once. SIGHUP makes it read its keys and
// certificates anew, and reopen its log. Owns: an I/O thread, on which everything happens that does not say otherwise,
// and helpers for JSON and tokenizing. Thread: the one that made it.
class Server {
 public:
  // Binds its address and reads its files. Throws Error naming option and value.
  explicit Server(ServerOptions options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Clients are heard from now on.
  void Start();
  // Requests are taken from now on. `engine` must live until Wait has returned. Throws Error if the process has no
  // descriptor left.
  void Serve(fd_engine* engine);
  // Returns when a signal has ended it. How many requests were cut.
  size_t Wait();

  const std::string& url() const { return url_; }

 private:
  void OnSignal();
  void Reload();
  void ReadFiles();
  void Watch();
  void BeginEnd(int signal);
  void ContinueEnd();
  void CutAll();
  void Stop();
  void PlaceThreads();
  Metrics::Gauges Gauges() const;
  void Log(int level, const std::string& message) const;

  const ServerOptions options_;
  asio::io_context io_{1};
  asio::thread_pool helpers_;
  Admission admission_;
  Metrics metrics_;
  AccessLog access_log_;
  Health health_;
  ServiceManager service_manager_;
  ServingContext context_;
  Router router_;
  Listener listener_;
  asio::signal_set signals_;
  asio::steady_timer watch_, end_timer_;
  std::unique_ptr<EngineEvents> events_;
  std::vector<clockid_t> cpu_clocks_;  // of the threads
  std::vector<pid_t> thread_ids_;
  std::string url_;
  bool ending_ = false;
  uint64_t end_begun_ns_ = 0;
  uint64_t end_ns_ = 0;   // when what still runs is cut
  uint64_t stop_ns_ = 0;  // when what still runs then is left alone; 0: not yet cut
  uint64_t watchdog_at_ns_ = 0;
  size_t cut_ = 0;
  std::thread thread_;
};

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_SERVER_H_
