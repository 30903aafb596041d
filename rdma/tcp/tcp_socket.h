#ifndef FASTDECODE_RDMA_TCP_TCP_SOCKET_H_
#define FASTDECODE_RDMA_TCP_TCP_SOCKET_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/file_descriptor.h"
#include "rdma/tcp/frame_reader.h"

struct addrinfo;

namespace fastdecode {

// TCP sockets, all of them non-blocking, over IPv4 and IPv6. Connections send at once (no Nagle) and are given up by
// the kernel when the peer's host has acknowledged nothing for kUnacknowledgedMs.

inline constexpr int kUnacknowledgedMs = 10'000;

// "10.0.0.1:4711", "[::1]:4711".
std::string FormatHostAndPort(const std::string& host, uint16_t port);

struct AddressListDeleter {
  void operator()(addrinfo* list) const;
};
using AddressList = std::unique_ptr<addrinfo, AddressListDeleter>;

// One socket for each address that `host` has ("::": all, of both kinds). Port 0: one that is free, for all of them the
// same. Looks names up, if the addresses are not given, which may take as long as the system's resolver takes.
// Errors, naming host and port: AlreadyExists (the port is in use), NotFound (no such host, or its addresses are not
// this machine's), PermissionDenied.
absl::StatusOr<std::vector<FileDescriptor>> ListenTcp(const std::string& host, uint16_t port);
absl::StatusOr<std::vector<FileDescriptor>> ListenTcp(const AddressList& addresses);

// The addresses of a host that is to be connected to. Looks its name up, which may take as long as the system's
// resolver takes. Errors, naming host and port: NotFound (no such host), Unavailable.
absl::StatusOr<AddressList> LookUpTcp(const std::string& host, uint16_t port);

// A connection to the first of the host's addresses that takes it; looks them up if they are not given.
// Errors, naming host, port and addresses: NotFound (nobody listens there), DeadlineExceeded, Unavailable; those of
// LookUpTcp.
absl::StatusOr<FileDescriptor> ConnectTcp(const std::string& host, uint16_t port, uint64_t deadline_ns);
absl::StatusOr<FileDescriptor> ConnectTcp(const std::string& host, uint16_t port, const AddressList& addresses,
                                          uint64_t deadline_ns);

// The next connection that waits at a listening socket, and who it is from (as FormatHostAndPort); or an invalid
// descriptor with errno.
FileDescriptor AcceptTcp(int listening_socket, std::string* peer_address);

// The port that a socket is bound to.
uint16_t LocalPort(int socket);

struct FrameNews {
  enum class Kind {
    kNothing,    // yet
    kFrame,      // text is its bytes
    kClosed,     // text is how the connection ended
    kMalformed,  // text is what is wrong with what came
  };
  Kind kind = Kind::kNothing;
  std::string text;
};
// Reads what `socket` has, up to the end of one frame.
FrameNews ReadFrame(int socket, FrameReader* reader);

// As much of `bytes` as the socket takes now; 0 if the peer has gone, which reading will tell.
size_t SendSome(int socket, const char* bytes, size_t count);

// Closes a connection such that what was sent before still reaches a peer that has itself sent what nobody read here.
void CloseTcp(FileDescriptor socket);

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_TCP_TCP_SOCKET_H_
