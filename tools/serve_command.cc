// fastdecode serve: OpenAI's chats and completions over HTTP.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fastdecode/fastdecode.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tools/commands.h"
#include "tools/engine_flags.h"
#include "tools/option_values.h"
#include "tools/serve/server.h"

namespace fastdecode {

namespace {

struct ServeFlags {
  serve::ServerOptions server;
  uint32_t port = 8000;
  uint32_t connections = 4096;
  uint32_t body_mb = 8;
  uint32_t slow_client_s = 30, grace_s = 30, health_stall_s = 30;
  uint64_t queued_requests = 4096, queued_tokens = 8 << 20;
};

constexpr uint64_t kSecond = 1'000'000'000;

// The folder's name: /models/tiny and /models/tiny/ are both "tiny".
std::string FolderName(const std::string& path) {
  std::error_code failed;
  std::filesystem::path whole = std::filesystem::absolute(path, failed).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  return whole.filename().empty() ? "model" : whole.filename().string();
}

// Why a text is no host, and what it would be. Empty: it may be one.
std::string NoHost(const std::string& text) {
  const std::string no = "'" + text + "' is no host alone; ";
  const size_t colon = text.find(':');
  if (text.find("://") != std::string::npos) return no + "leave the scheme out, and give a port with --port N";
  if (text.starts_with("unix:")) return no + "give --uds " + text.substr(colon + 1);
  if (text.find('/') != std::string::npos || text.ends_with(".sock")) return no + "give --uds " + text;
  if (text == "*") return no + "0.0.0.0 is every address";
  if (text.front() == '[') return no + "give an IPv6 address without brackets, and a port with --port N";
  if (colon != std::string::npos && text.find(':', colon + 1) == std::string::npos) {
    return no + "give --host " + (colon == 0 ? "0.0.0.0" : text.substr(0, colon)) + " --port " + text.substr(colon + 1);
  }
  return "";
}

std::string NoPath(const std::string& text) {
  return text.starts_with("unix:") ? "'" + text + "' is no path; leave unix: out" : "";
}

const char* kLevels[] = {"debug: ", "", "warning: ", "error: "};

void Serve(ServeFlags flags, const EngineFlags& engine_flags) {
  if (!engine_flags.Given("model"))
    throw Error(FD_INVALID_ARGUMENT, "--model: it is needed: the folder of the model to serve");
  serve::ServerOptions options = flags.server;
  options.root = engine_flags.Value("model");
  if (options.names.empty()) options.names.push_back(FolderName(options.root));
  options.listen.port = static_cast<int>(flags.port);
  options.listen.connections = flags.connections;
  options.http.body_bytes = static_cast<size_t>(flags.body_mb) << 20;
  options.http.slow_client_ns = flags.slow_client_s * kSecond;
  options.grace_ns = flags.grace_s * kSecond;
  options.health_stall_ns = flags.health_stall_s * kSecond;
  options.queue = {.requests = flags.queued_requests, .tokens = flags.queued_tokens};
  options.log = [level_min = engine_flags.log_level()](int level, const std::string& message) {
    if (level >= level_min) std::fprintf(stderr, "fastdecode: %s%s\n", kLevels[level], message.c_str());
  };
  // The service manager tells its children in no other way.
  if (const char* const socket = std::getenv("NOTIFY_SOCKET")) options.notify_socket = socket;
  options.watchdog_ns = serve::WatchdogPeriodNs(std::getenv("WATCHDOG_USEC"), std::getenv("WATCHDOG_PID"));

  // An address in use is known before the weights are read, and whoever asks meanwhile hears that they are.
  serve::Server server(options);
  server.Start();
  const std::unique_ptr<EngineOptions> engine_options = engine_flags.Build();
  InferenceEngine engine(*engine_options);
  server.Serve(engine.get());
  std::fprintf(stderr, "fastdecode: ready on %s\n", server.url().c_str());
  server.Wait();
}

}  // namespace

void AddServe(CLI::App& program) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* command = program.add_subcommand("serve", "Answer OpenAI's chat and completions API over HTTP (docs/SERVING.md)");
  serve::ServerOptions& server = flags->server;
  const char* group = "Address";
  command->add_option("--host", server.listen.host, "address or name to listen on [127.0.0.1]")
      ->check([](const std::string& text) { return text.empty() ? "" : NoHost(text); })
      ->type_name("HOST")
      ->group(group);
  command->add_option("--port", flags->port, "port; 0: any that is free, and the log says which [8000]")
      ->transform(Number<uint32_t>(0, 65535))
      ->group(group);
  command->add_option("--uds", server.listen.uds, "listen on this unix socket instead")
      ->check(NoPath)
      ->type_name("PATH")
      ->group(group);
  command
      ->add_option("--served-model-name", server.names,
                   "names of the model, any of which a request may say; the first is the one in answers [the folder's]")
      ->type_name("NAME")
      ->expected(1, 64)
      ->group(group);
  command->add_option("--tls-cert", server.tls_cert, "certificate chain in PEM: HTTPS; read anew on SIGHUP")
      ->type_name("FILE")
      ->group(group);
  command->add_option("--tls-key", server.tls_key, "its private key in PEM")->type_name("FILE")->group(group);

  group = "Access";
  command
      ->add_option("--api-key-file", server.api_key_file,
                   "keys, one a line: KEY, NAME:KEY or NAME:sha256=HEX; read anew on SIGHUP [none is needed]")
      ->type_name("FILE")
      ->group(group);
  command
      ->add_option("--cors-origin", server.cors_origins,
                   "origins whose pages may ask from a browser, such as https://chat.example.org; *: any [none]")
      ->type_name("ORIGIN")
      ->delimiter(',')
      ->group(group);
  command
      ->add_option("--access-log", server.access_log,
                   "a JSON line for each request, without what it says: file, - for stdout, or none [-]")
      ->type_name("FILE")
      ->group(group);

  group = "Limits";
  command->add_option("--max-connections", flags->connections, "at once [4096]")
      ->transform(Number<uint32_t>(1, 1 << 20))
      ->group(group);
  command->add_option("--max-body-mb", flags->body_mb, "MiB of a request's body [8]")
      ->transform(Number<uint32_t>(1, 1024))
      ->group(group);
  command
      ->add_option("--max-queued-requests", flags->queued_requests,
                   "sequences that wait for their first token; more are refused with 503; 0: no limit [4096]")
      ->transform(Number<uint64_t>(0, uint64_t{1} << 40))
      ->group(group);
  command
      ->add_option("--max-queued-tokens,--max-num-queued-tokens", flags->queued_tokens,
                   "tokens of their prompts; 0: no limit [8388608]")
      ->transform(Number<uint64_t>(0, uint64_t{1} << 40))
      ->group(group);
  command
      ->add_option("--slow-client-s", flags->slow_client_s,
                   "so long a client may take for what it is sent, 256 KiB at most at a time [30]")
      ->transform(Number<uint32_t>(1, 86400))
      ->group(group);
  command->add_option("--grace-s", flags->grace_s, "after SIGTERM, requests that run may finish for so long [30]")
      ->transform(Number<uint32_t>(0, 86400))
      ->group(group);
  command
      ->add_option("--health-stall-s", flags->health_stall_s,
                   "/health says 503 when requests wait and no step has ended for so long [30]")
      ->transform(Number<uint32_t>(1, 86400))
      ->group(group);
  auto engine_flags = std::make_shared<EngineFlags>(command, EngineFlagNames());
  engine_flags->SetDefault("front-cores", "auto");
  engine_flags->SetDefault("max-queue", "8192");  // the server's own limits refuse before the engine's
  command->callback([flags, engine_flags] { Serve(*flags, *engine_flags); });
}

}  // namespace fastdecode
