#include "tools/serve/server.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fastdecode/fastdecode.hpp>
#include <future>
#include <latch>
#include <utility>

#include "tools/serve/clock.h"
#include "tools/serve/engine_text.h"

namespace fastdecode::serve {

namespace {

constexpr size_t kHelpers = 2;
constexpr auto kWatch = std::chrono::seconds(1);
constexpr auto kEndStep = std::chrono::milliseconds(20);
constexpr uint64_t kCutNs = 1'000'000'000;  // for the last errors to reach their clients
constexpr int kNice = 5;
constexpr uint64_t kSameSignalNs = 1'000'000'000;

// Every client has a descriptor. Empty, or why there may not be more of them.
std::string RaiseDescriptorLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::string("getrlimit: ") + std::strerror(errno);
  if (limit.rlim_cur == limit.rlim_max) return "";
  const rlim_t before = std::exchange(limit.rlim_cur, limit.rlim_max);
  if (setrlimit(RLIMIT_NOFILE, &limit) == 0) return "";
  return std::string("setrlimit: ") + std::strerror(errno) + ": " + std::to_string(before) + " are all";
}

std::string ListText(const std::vector<int32_t>& cores) {
  std::string text;
  for (const int32_t core : cores) text += (text.empty() ? "" : ",") + std::to_string(core);
  return text;
}

}  // namespace

Server::Server(ServerOptions options)
    : options_(std::move(options)),
      helpers_(kHelpers),
      admission_(options_.queue),
      metrics_(options_.names.front()),
      access_log_(options_.access_log),
      health_(options_.health_stall_ns),
      service_manager_(options_.notify_socket.c_str()),
      router_({.context = &context_,
               .health = &health_,
               .log = &access_log_,
               .helpers = &helpers_,
               .gauges = [this] { return Gauges(); },
               .root = options_.root,
               .cors_origins = options_.cors_origins}),
      listener_(io_, options_.listen, options_.http, &router_),
      signals_(io_, SIGINT, SIGTERM, SIGHUP),
      watch_(io_),
      end_timer_(io_) {
  context_.io = &io_;
  context_.helpers = &helpers_;
  context_.names = options_.names;
  context_.limits = options_.requests;
  context_.admission = &admission_;
  context_.metrics = &metrics_;
  if (const std::string why = RaiseDescriptorLimit(); !why.empty()) {
    Log(2, "serve: the limit of descriptors, of which each client has one, cannot be raised: " + why);
  }
  ReadFiles();
  url_ = listener_.url();
  OnSignal();
}

Server::~Server() {
  asio::post(io_, [this] { Stop(); });
  if (thread_.joinable()) thread_.join();
  helpers_.join();
}

void Server::Log(int level, const std::string& message) const {
  if (options_.log) options_.log(level, message);
}

void Server::ReadFiles() {
  std::shared_ptr<const ApiKeys> keys;
  std::shared_ptr<asio::ssl::context> tls;
  if (options_.tls_cert.empty() != options_.tls_key.empty()) {
    throw Error(FD_INVALID_ARGUMENT, options_.tls_key.empty()
                                         ? "--tls-cert: the private key is missing; give it as --tls-key FILE"
                                         : "--tls-key: the certificate is missing; give it as --tls-cert FILE");
  }
  if (!options_.api_key_file.empty()) keys = std::make_shared<const ApiKeys>(ApiKeys::Read(options_.api_key_file));
  if (!options_.tls_cert.empty()) tls = MakeTlsContext(options_.tls_cert, options_.tls_key);
  router_.SetKeys(keys);
  listener_.SetTls(tls);
}

void Server::Start() {
  // Each thread keeps it: who has arrived may still be in it when this function has returned.
  const auto begun = std::make_shared<std::latch>(1 + kHelpers);
  std::mutex mutex;
  const auto note = [this, begun, &mutex] {
    clockid_t clock;
    if (pthread_getcpuclockid(pthread_self(), &clock) == 0) {
      const std::lock_guard<std::mutex> lock(mutex);
      cpu_clocks_.push_back(clock);
      thread_ids_.push_back(gettid());
    }
    begun->arrive_and_wait();
  };
  thread_ = std::thread([this, note] {
    pthread_setname_np(pthread_self(), "fd-serve-io");
    note();
    listener_.Start();
    const auto work = asio::make_work_guard(io_);
    while (!io_.stopped()) {
      try {
        io_.run();
      } catch (const std::exception& error) {
        Log(3, std::string("serve: ") + error.what());
      }
    }
  });
  for (size_t i = 0; i < kHelpers; ++i) {
    asio::post(helpers_, [note] {
      pthread_setname_np(pthread_self(), "fd-serve-text");
      note();
    });
  }
  begun->wait();
}

void Server::Serve(fd_engine* engine) {
  fd_request_init(&context_.defaults, sizeof(context_.defaults));
  fd_default_sampling(engine, &context_.defaults);
  std::promise<void> done;
  asio::post(io_, [&] {
    try {
      events_ = std::make_unique<EngineEvents>(io_, engine);
      context_.engine = engine;
      context_.created_s = WallNs() / 1'000'000'000;
      context_.token_bytes_max = LongestToken(engine);
      context_.limits.choices = std::min(context_.limits.choices, fd_max_choices(engine));
      PlaceThreads();
      router_.SetPhase(ending_ ? Router::Phase::kEnding : Router::Phase::kServing);
      service_manager_.Ready("serving at " + url());
      if (!service_manager_.problem().empty()) Log(2, "serve: " + service_manager_.problem());
      Watch();
      done.set_value();
    } catch (...) {
      done.set_exception(std::current_exception());
    }
  });
  done.get_future().get();
}

// The engine's pinned threads keep their cores for themselves where there are cores to spare.
void Server::PlaceThreads() {
  std::vector<int32_t> cores(1024);
  cores.resize(fd_engine_front_cores(context_.engine, cores.data(), cores.size()));
  if (cores.empty()) {
    for (const pid_t thread : thread_ids_) {
      if (setpriority(PRIO_PROCESS, static_cast<id_t>(thread), kNice) == 0) continue;
      return Log(2,
                 std::string("serve: its threads have no core of their own, and take time from the engine's, as they "
                             "cannot be put behind them: setpriority: ") +
                     std::strerror(errno));
    }
    return Log(1, "serve: its threads have no core of their own, and run at nice 5");
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int32_t core : cores) CPU_SET(static_cast<size_t>(core), &set);
  for (const pid_t thread : thread_ids_) {
    if (sched_setaffinity(thread, sizeof(set), &set) != 0) {
      return Log(2, "serve: its threads cannot be put on the cores " + ListText(cores) +
                        ", which the engine left free: sched_setaffinity: " + std::strerror(errno));
    }
  }
  Log(1, "serve: its threads run on the cores " + ListText(cores));
}

size_t Server::Wait() {
  thread_.join();
  helpers_.join();
  return cut_;
}

Metrics::Gauges Server::Gauges() const {
  Metrics::Gauges gauges;
  gauges.connections = listener_.connections();
  gauges.streams = listener_.streams();
  gauges.refused_connections = listener_.refused();
  gauges.access_log_dropped = access_log_.dropped();
  for (const clockid_t clock : cpu_clocks_) {
    timespec used;
    if (clock_gettime(clock, &used) != 0) continue;
    gauges.front_cpu_s += static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
  }
  return gauges;
}

void Server::Watch() {
  health_.Look(context_.engine);
  const uint64_t now = MonotonicNs();
  if (options_.watchdog_ns != 0 && now >= watchdog_at_ns_ && !health_.stalled()) {
    service_manager_.Watchdog();
    watchdog_at_ns_ = now + options_.watchdog_ns;
  }
  watch_.expires_after(kWatch);
  watch_.async_wait([this](const error_code& error) {
    if (!error) Watch();
  });
}

void Server::OnSignal() {
  signals_.async_wait([this](const error_code& error, int signal) {
    if (error) return;
    if (signal == SIGHUP) {
      Reload();
    } else {
      BeginEnd(signal);
    }
    OnSignal();
  });
}

// What cannot be read leaves what there is.
void Server::Reload() {
  const bool serving = context_.engine != nullptr && !ending_;
  if (serving) service_manager_.Reloading();
  try {
    ReadFiles();
    access_log_.Reopen();
    Log(1, "serve: keys and certificates have been read anew, and the log is open anew");
  } catch (const std::exception& error) {
    Log(3, std::string("serve: SIGHUP: ") + error.what() + "; what was read before stays");
  }
  if (serving) service_manager_.Ready("serving at " + url());
}

void Server::BeginEnd(int signal) {
  if (context_.engine == nullptr) {
    // Nothing is served yet, and reading a model cannot be interrupted.
    Log(1, "serve: ended by a signal while the model was being loaded");
    std::_Exit(128 + signal);
  }
  if (ending_) {
    // `timeout` sends it twice, a logout more often.
    if (MonotonicNs() - end_begun_ns_ >= kSameSignalNs) end_ns_ = 0;
    return;
  }
  ending_ = true;
  end_begun_ns_ = MonotonicNs();
  router_.SetPhase(Router::Phase::kEnding);
  service_manager_.Stopping("finishing what runs");
  Log(1, "serve: ending; requests that run may finish within " + std::to_string(options_.grace_ns / 1'000'000'000) +
             " s (--grace-s), a signal that comes a second later cuts them");
  fd_drain(context_.engine, 0);
  listener_.CloseWhenIdle();
  end_ns_ = MonotonicNs() + options_.grace_ns;
  ContinueEnd();
}

void Server::ContinueEnd() {
  const uint64_t now = MonotonicNs();
  if (stop_ns_ == 0 && now >= end_ns_) {
    CutAll();
    stop_ns_ = now + kCutNs;
  }
  const bool quiet = context_.live.empty() && listener_.busy() == 0;
  if (quiet || (stop_ns_ != 0 && now >= stop_ns_)) return Stop();
  end_timer_.expires_after(kEndStep);
  end_timer_.async_wait([this](const error_code& error) {
    if (!error) ContinueEnd();
  });
}

void Server::CutAll() {
  const ApiError why{.status = 503,
                     .message = "the server is shutting down and has cut this request",
                     .type = "server_error",
                     .code = "shutting_down"};
  const std::vector<Completion*> live(context_.live.begin(), context_.live.end());
  for (Completion* const completion : live) cut_ += completion->CutShort(why);
  if (cut_ > 0) Log(2, "serve: " + std::to_string(cut_) + " requests were cut");
}

void Server::Stop() {
  listener_.Stop();
  events_.reset();
  // What a helper does not do any more, nobody waits for.
  helpers_.stop();
  helpers_.join();
  const std::vector<Completion*> live(context_.live.begin(), context_.live.end());
  for (Completion* const completion : live) completion->Abandon();
  io_.stop();
}

}  // namespace fastdecode::serve
