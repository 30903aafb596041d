#ifndef FASTDECODE_TOOLS_LOAD_HTTP_CLIENT_H_
#define FASTDECODE_TOOLS_LOAD_HTTP_CLIENT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace fastdecode::load {

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

}  // namespace fastdecode::load

#endif  // FASTDECODE_TOOLS_LOAD_HTTP_CLIENT_H_
