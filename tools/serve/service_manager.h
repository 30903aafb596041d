#ifndef FASTDECODE_TOOLS_SERVE_SERVICE_MANAGER_H_
#define FASTDECODE_TOOLS_SERVE_SERVICE_MANAGER_H_

#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>
#include <string>

namespace fastdecode::serve {

// What systemd wants to know of a service of Type=notify or notify-reload (sd_notify(3)): one datagram a message to the
// socket that $NOTIFY_SOCKET names, a path or, behind @, an abstract name. Without the variable nothing is sent.
// A message that the socket does not take at once is lost; those that change the service's state are tried for a tenth
// of a second, because systemd would wait for them.
// Owns: its end of the socket. Thread: one.
class ServiceManager {
 public:
  // `socket`: the variable's value; null or empty: none.
  explicit ServiceManager(const char* socket);
  ~ServiceManager();
  ServiceManager(const ServiceManager&) = delete;
  ServiceManager& operator=(const ServiceManager&) = delete;

  void Ready(const std::string& status);  // READY=1 and STATUS=; also after Reloading
  void Reloading();                       // RELOADING=1 and MONOTONIC_USEC=
  void Stopping(const std::string& status);
  void Status(const std::string& status);
  void Watchdog();  // WATCHDOG=1: it is alive

  // Why nothing can be sent, or why the last message was lost, for the program's log; empty: nothing is wrong.
  const std::string& problem() const { return problem_; }

 private:
  void Send(const std::string& message, int tries);

  int fd_ = -1;
  sockaddr_un address_ = {};
  socklen_t address_bytes_ = 0;
  std::string problem_;
};

// Half of what $WATCHDOG_USEC asks, if $WATCHDOG_PID is this process or absent; 0: no watchdog. A value that is no
// number counts as absent.
uint64_t WatchdogPeriodNs(const char* watchdog_usec, const char* watchdog_pid);

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_SERVICE_MANAGER_H_
