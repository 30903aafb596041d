#include "tools/load/http_load.h"

#include <sys/resource.h>

#include <algorithm>
#include <fastdecode/fastdecode.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "tools/load/http_connection.h"
#include "tools/load/run_clock.h"

namespace fastdecode::load {

namespace asio = boost::asio;
using boost::beast::error_code;

namespace {

constexpr size_t kOtherDescriptors = 32;

// How many connections there may be, up to `wanted`. Raises the process's limit if it can.
size_t AllowDescriptors(size_t wanted) {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  const rlim_t needed = wanted + kOtherDescriptors;
  if (limit.rlim_cur < needed) {
    rlimit raised = limit;
    raised.rlim_cur = std::min(needed, limit.rlim_max);
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  return limit.rlim_cur >= needed ? wanted : static_cast<size_t>(limit.rlim_cur) - kOtherDescriptors;
}

// Throws Error if there cannot be as many connections as a closed loop needs.
void CheckDescriptors(size_t connections, size_t allowed) {
  if (allowed >= connections) return;
  throw Error(FD_RESOURCE_EXHAUSTED, "--concurrency: " + std::to_string(connections) + " connections need " +
                                         std::to_string(connections + kOtherDescriptors) +
                                         " open files, and this process may have " +
                                         std::to_string(allowed + kOtherDescriptors) + "; raise the limit (ulimit -n)");
}

// The requests of a run, and the connections that share them.
class HttpLoad : public Connection::Owner {
 public:
  HttpLoad(const Server& server, const std::vector<HttpRequest>& requests, const HttpLoadOptions& options,
           const Pace& pace, const RunHooks& hooks)
      : server_(server),
        requests_(requests),
        options_(options),
        pace_(pace),
        hooks_(hooks),
        endpoint_(EndpointOf(server.address)),
        io_(1),
        tick_(io_),
        next_start_(io_) {
    run_.results.resize(pace.is_open() ? std::min(pace.arrivals_s.size(), requests.size()) : requests.size());
    const size_t wanted = std::min<size_t>(pace.concurrency > 0 ? pace.concurrency : SIZE_MAX, run_.results.size());
    connections_max_ = AllowDescriptors(wanted);
    if (pace.concurrency > 0) CheckDescriptors(wanted, connections_max_);
    for (size_t i = 0; i < run_.results.size(); ++i) {
      constexpr int64_t kReservedMax = 1 << 16;
      run_.results[i].prompt_tokens = requests[i].prompt_tokens;
      if (options.stream) run_.results[i].itl_ns.reserve(std::min(requests[i].output_tokens_max, kReservedMax));
    }
  }

  LoadRun Run() {
    clock_.emplace(&run_);
    Tick();
    StartDue();
    io_.run();
    clock_->Stop();
    for (const auto& connection : connections_) run_.connections += connection->connections();
    return std::move(run_);
  }

  void OnIdle(Connection* connection, const RequestResult& last) override {
    if (is_over_) return;
    idle_.push_back(connection);
    if (++ended_ == run_.results.size() || (hooks_.goes_on && !hooks_.goes_on(last))) return Stop();
    StartDue();
  }

 private:
  int64_t IntendedNs(size_t index) const { return run_.start_ns + static_cast<int64_t>(pace_.arrivals_s[index] * 1e9); }

  // Starts all that is to have started by now, and waits for the next.
  void StartDue() {
    while (next_ < run_.results.size()) {
      if (pace_.is_open()) {
        const int64_t intended_ns = IntendedNs(next_);
        const int64_t wait_ns = intended_ns - RunClock::Now();
        if (wait_ns > 0) return WaitForNext(wait_ns);
        run_.results[next_].intended_ns = intended_ns;
      }
      Connection* const connection = TakeIdle();
      if (connection == nullptr) return;  // OnIdle goes on
      const std::string& body = requests_[next_].body;
      connection->Start(RequestHead(server_, "POST", "/v1/completions", body.size()), &body, &run_.results[next_]);
      ++next_;
    }
  }

  void WaitForNext(int64_t wait_ns) {
    next_start_.expires_after(std::chrono::nanoseconds(wait_ns));
    next_start_.async_wait([this](const error_code& error) {
      if (!error && !is_over_) StartDue();
    });
  }

  // The one that had a request last, whose buffers are warm; null: all are busy, and there may be no more.
  Connection* TakeIdle() {
    if (idle_.empty()) {
      if (connections_.size() == connections_max_) return nullptr;
      const Answer answer(options_.stream ? Answer::Kind::kStream : Answer::Kind::kWhole, options_.keep_text);
      connections_.push_back(
          std::make_unique<Connection>(&io_, endpoint_, server_.timeout_s, answer, static_cast<Owner*>(this)));
      return connections_.back().get();
    }
    Connection* const connection = idle_.back();
    idle_.pop_back();
    return connection;
  }

  void Tick() {
    constexpr std::chrono::milliseconds kEvery(100);
    if (hooks_.is_interrupted && hooks_.is_interrupted()) return Stop();
    if (hooks_.report_progress) hooks_.report_progress(ended_);
    tick_.expires_after(kEvery);
    tick_.async_wait([this](const error_code& error) {
      if (!error && !is_over_) Tick();
    });
  }

  void Stop() {
    is_over_ = true;
    clock_->Stop();
    tick_.cancel();
    next_start_.cancel();
    for (const auto& connection : connections_) connection->Close();
  }

  const Server& server_;
  const std::vector<HttpRequest>& requests_;
  const HttpLoadOptions& options_;
  const Pace& pace_;
  const RunHooks& hooks_;
  const StreamEndpoint endpoint_;
  asio::io_context io_;
  asio::steady_timer tick_, next_start_;
  size_t connections_max_ = 0;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> idle_;
  LoadRun run_;
  std::optional<RunClock> clock_;  // from the begin of the run on
  size_t next_ = 0, ended_ = 0;
  bool is_over_ = false;
};

}  // namespace

LoadRun RunHttpLoad(const Server& server, const std::vector<HttpRequest>& requests, const HttpLoadOptions& options,
                    const Pace& pace, const RunHooks& hooks) {
  return HttpLoad(server, requests, options, pace, hooks).Run();
}

}  // namespace fastdecode::load
