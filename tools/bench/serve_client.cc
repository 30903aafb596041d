#include "tools/bench/serve_client.h"

#include <sys/resource.h>

#include <algorithm>
#include <fastdecode/fastdecode.hpp>
#include <memory>
#include <string_view>

#include "tools/bench/serve_connection.h"
#include "tools/option_values.h"
#include "tools/prompts.h"

// After the connection's header, which first includes what Asio lacks.
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>

namespace fastdecode::serve_bench {

namespace asio = boost::asio;
using boost::beast::error_code;

namespace {

[[noreturn]] void RefuseUrl(const std::string& url, const std::string& why) {
  throw Error(FD_INVALID_ARGUMENT, "--url: '" + url + "' " + why + "; give http://HOST:PORT or unix:PATH");
}

bool TakePrefix(std::string_view* text, std::string_view prefix) {
  if (text->substr(0, prefix.size()) != prefix) return false;
  text->remove_prefix(prefix.size());
  return true;
}

// HOST, HOST:PORT, [ADDRESS] or [ADDRESS]:PORT.
void TakeAuthority(std::string_view text, const std::string& whole, ServerUrl* url) {
  std::string_view port;
  if (TakePrefix(&text, "[")) {
    const size_t end = text.find(']');
    if (end == std::string_view::npos) RefuseUrl(whole, "has a [ without a ]");
    url->host = text.substr(0, end);
    port = text.substr(end + 1);
  } else {
    const size_t colon = std::min(text.find(':'), text.size());
    url->host = text.substr(0, colon);
    port = text.substr(colon);
  }
  if (url->host.empty()) RefuseUrl(whole, "names no host");
  int number = 80;
  if (!port.empty() && (!TakePrefix(&port, ":") || !ParseNumber(port, &number) || number < 1 || number > 65535)) {
    RefuseUrl(whole, "has no port from 1 to 65535 after its host");
  }
  url->port = std::to_string(number);
}

StreamEndpoint EndpointOf(const Server& server) {
  const auto* address = reinterpret_cast<const sockaddr*>(server.address.data());
  return StreamEndpoint(address, server.address.size(), address->sa_family == AF_INET6 ? IPPROTO_TCP : 0);
}

std::vector<StreamEndpoint> Resolve(const ServerUrl& url) {
  if (!url.unix_path.empty()) return {asio::local::stream_protocol::endpoint(url.unix_path)};
  asio::io_context io;
  error_code error;
  asio::ip::tcp::resolver resolver(io);
  std::vector<StreamEndpoint> endpoints;
  for (const auto& entry : resolver.resolve(url.host, url.port, error)) endpoints.push_back(entry.endpoint());
  if (!endpoints.empty()) return endpoints;
  throw Error(FD_UNAVAILABLE, "--url: no address of the host '" + url.host + "' is known: " + error.message());
}

// Whether a connection can be made.
bool CanConnect(const StreamEndpoint& endpoint, double timeout_s, std::string* problem) {
  asio::io_context io;
  asio::generic::stream_protocol::socket socket(io);
  *problem = "it does not answer";
  bool connected = false;
  socket.async_connect(endpoint, [&](const error_code& error) {
    connected = !error;
    *problem = error.message();
  });
  io.run_for(std::chrono::nanoseconds(static_cast<int64_t>(std::min(timeout_s, kConnectTimeoutS) * 1e9)));
  return connected;
}

int64_t ThreadCpuNs() {
  timespec used;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<int64_t>(used.tv_sec) * 1'000'000'000 + used.tv_nsec;
}

// A descriptor for each connection. Throws Error if the process may not have as many.
void AllowDescriptors(int connections) {
  constexpr rlim_t kOthers = 32;
  const rlim_t needed = static_cast<rlim_t>(connections) + kOthers;
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  limit.rlim_cur = std::min(needed, limit.rlim_max);
  if (limit.rlim_cur == needed && setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
  throw Error(FD_RESOURCE_EXHAUSTED, "--concurrency: " + std::to_string(connections) + " connections need " +
                                         std::to_string(needed) + " open files, and this process may have " +
                                         std::to_string(limit.rlim_max) + "; raise the limit (ulimit -n)");
}

// The requests of a run, and the connections that share them.
class ClosedLoop : public Connection::Owner {
 public:
  ClosedLoop(const Server& server, const std::vector<LoadRequest>& requests, const LoadOptions& options)
      : server_(server), requests_(requests), options_(options), io_(1), tick_(io_) {
    run_.results.resize(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      constexpr int64_t kReservedMax = 1 << 16;
      run_.results[i].prompt_tokens = requests[i].prompt_tokens;
      if (options.stream) run_.results[i].itl_ns.reserve(std::min(requests[i].output_tokens_max, kReservedMax));
    }
    const size_t connections = std::min<size_t>(options.concurrency, requests.size());
    AllowDescriptors(static_cast<int>(connections));
    const Answer answer(options.stream ? Answer::Kind::kStream : Answer::Kind::kWhole, options.keep_text);
    for (size_t i = 0; i < connections; ++i) {
      connections_.push_back(
          std::make_unique<Connection>(&io_, EndpointOf(server), server.timeout_s, answer, static_cast<Owner*>(this)));
    }
  }

  LoadRun Run() {
    run_.start_ns = NowNs();
    const int64_t cpu_start_ns = ThreadCpuNs();
    Tick();
    for (const auto& connection : connections_) StartNext(connection.get());
    io_.run();
    if (run_.end_ns == 0) run_.end_ns = NowNs();
    run_.cpu_ns = ThreadCpuNs() - cpu_start_ns;
    for (const auto& connection : connections_) run_.connections += connection->connections();
    return std::move(run_);
  }

  void OnIdle(Connection* connection) override {
    if (is_over_) return;
    if (++ended_ == requests_.size()) return Stop();
    StartNext(connection);
  }

 private:
  void StartNext(Connection* connection) {
    if (next_ == requests_.size()) return;
    const std::string& body = requests_[next_].body;
    connection->Start(RequestHead(server_, "POST", "/v1/completions", body.size()), &body, &run_.results[next_]);
    ++next_;
  }

  void Tick() {
    constexpr std::chrono::milliseconds kEvery(100);
    if (options_.is_interrupted && options_.is_interrupted()) return Stop();
    if (options_.report_progress) options_.report_progress(ended_);
    tick_.expires_after(kEvery);
    tick_.async_wait([this](const error_code& error) {
      if (!error && !is_over_) Tick();
    });
  }

  void Stop() {
    is_over_ = true;
    run_.end_ns = NowNs();
    tick_.cancel();
    for (const auto& connection : connections_) connection->Close();
  }

  const Server& server_;
  const std::vector<LoadRequest>& requests_;
  const LoadOptions& options_;
  asio::io_context io_;
  asio::steady_timer tick_;
  std::vector<std::unique_ptr<Connection>> connections_;
  LoadRun run_;
  size_t next_ = 0, ended_ = 0;
  bool is_over_ = false;
};

// One request, after which the connection goes.
class OneShot : public Connection::Owner {
 public:
  void OnIdle(Connection* connection) override { connection->Close(); }
};

}  // namespace

std::string ServerUrl::Text() const {
  if (!unix_path.empty()) return "unix:" + unix_path;
  const bool is_v6 = host.find(':') != std::string::npos;
  return "http://" + (is_v6 ? "[" + host + "]" : host) + ":" + port + prefix;
}

ServerUrl ParseServerUrl(const std::string& text) {
  constexpr size_t kPathBytesMax = 107;  // of a Unix socket
  ServerUrl url;
  std::string_view rest = text;
  const auto is_plain = [](unsigned char c) { return c > 0x20 && c < 0x7f; };
  if (TakePrefix(&rest, "unix:")) {
    url.unix_path = rest;
    if (rest.empty()) RefuseUrl(text, "names no socket");
    if (rest.size() > kPathBytesMax) RefuseUrl(text, "is longer than the path of a socket may be (107 bytes)");
    return url;
  }
  if (TakePrefix(&rest, "https://")) {
    RefuseUrl(text,
              "needs TLS, which this client does not speak yet; let it talk to the server without, or through a "
              "local proxy that does");
  }
  if (!TakePrefix(&rest, "http://")) RefuseUrl(text, "begins with neither http:// nor unix:");
  if (!std::all_of(rest.begin(), rest.end(), is_plain)) RefuseUrl(text, "has a character that no URL has");
  if (rest.find_first_of("?#@") != std::string_view::npos)
    RefuseUrl(text, "has a ?, # or @, which have no meaning here");
  const size_t slash = std::min(rest.find('/'), rest.size());
  TakeAuthority(rest.substr(0, slash), text, &url);
  std::string_view prefix = rest.substr(slash);
  const auto drop_slashes = [&] {
    while (!prefix.empty() && prefix.back() == '/') prefix.remove_suffix(1);
  };
  drop_slashes();
  // The base URL of OpenAI's clients ends so.
  constexpr std::string_view kVersion = "/v1";
  if (prefix.size() >= kVersion.size() && prefix.substr(prefix.size() - kVersion.size()) == kVersion) {
    prefix.remove_suffix(kVersion.size());
    drop_slashes();
  }
  url.prefix = prefix;
  return url;
}

Server FindServer(const ServerUrl& url, const std::string& api_key, double timeout_s) {
  Server server{url, api_key, {}, timeout_s};
  std::string problem;
  for (const StreamEndpoint& endpoint : Resolve(url)) {
    if (!CanConnect(endpoint, timeout_s, &problem)) continue;
    const auto* bytes = reinterpret_cast<const char*>(endpoint.data());
    server.address.assign(bytes, bytes + endpoint.size());
    return server;
  }
  throw Error(FD_UNAVAILABLE, "--url: cannot connect to " + url.Text() + ": " + problem + "; is the server running?");
}

std::string ReadApiKey(const std::string& path) {
  if (path.empty()) return "";
  const std::string text = ReadFile(path);
  std::string key = text.substr(0, text.find('\n'));
  while (!key.empty() && (key.back() == '\r' || key.back() == ' ')) key.pop_back();
  if (key.empty()) throw Error(FD_INVALID_ARGUMENT, "--api-key-file: " + path + ": its first line, the key, is empty");
  const auto is_plain = [](unsigned char c) { return c > 0x20 && c < 0x7f; };
  if (std::all_of(key.begin(), key.end(), is_plain)) return key;
  throw Error(FD_INVALID_ARGUMENT, "--api-key-file: " + path + ": the key has a space or what is no ASCII");
}

std::string RequestHead(const Server& server, const char* method, const std::string& path, size_t body_bytes) {
  const ServerUrl& url = server.url;
  const bool is_v6 = url.host.find(':') != std::string::npos;
  const std::string host = !url.unix_path.empty() ? "localhost"
                           : is_v6                ? "[" + url.host + "]:" + url.port
                                                  : url.host + ":" + url.port;
  std::string head = std::string(method) + " " + url.prefix + path + " HTTP/1.1\r\nHost: " + host +
                     "\r\nUser-Agent: " + server.user_agent + "\r\nAccept: */*\r\n";
  if (!server.api_key.empty()) head += "Authorization: Bearer " + server.api_key + "\r\n";
  if (body_bytes > 0) {
    head += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body_bytes) + "\r\n";
  }
  return head + "\r\n";
}

std::string StatusHint(int status) { return status == 401 ? "; give the server's key with --api-key-file FILE" : ""; }

std::string Get(const Server& server, const std::string& path) {
  asio::io_context io;
  OneShot owner;
  RequestResult result;
  Connection connection(&io, EndpointOf(server), std::min(server.timeout_s, 30.0), Answer(Answer::Kind::kRaw, true),
                        &owner);
  const std::string no_body;
  connection.Start(RequestHead(server, "GET", path, 0), &no_body, &result);
  io.run();
  if (result.succeeded()) return result.text;
  throw Error(FD_UNAVAILABLE, server.url.Text() + path + ": " + result.error + StatusHint(result.status));
}

LoadRun RunClosedLoop(const Server& server, const std::vector<LoadRequest>& requests, const LoadOptions& options) {
  return ClosedLoop(server, requests, options).Run();
}

}  // namespace fastdecode::serve_bench
