#include "tools/load/http_client.h"

#include <algorithm>
#include <fastdecode/fastdecode.hpp>
#include <string_view>

#include "tools/load/http_connection.h"
#include "tools/option_values.h"
#include "tools/read_file.h"

// After the connection's header, which first includes what Asio lacks.
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>

namespace fastdecode::load {

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

// One request, after which the connection goes.
class OneShot : public Connection::Owner {
 public:
  void OnIdle(Connection* connection, const RequestResult&) override { connection->Close(); }
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
  Connection connection(&io, EndpointOf(server.address), std::min(server.timeout_s, 30.0),
                        Answer(Answer::Kind::kRaw, true), &owner);
  const std::string no_body;
  connection.Start(RequestHead(server, "GET", path, 0), &no_body, &result);
  io.run();
  if (result.succeeded()) return result.text;
  throw Error(FD_UNAVAILABLE, server.url.Text() + path + ": " + result.error + StatusHint(result.status));
}

}  // namespace fastdecode::load
