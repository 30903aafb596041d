#ifndef FASTDECODE_RDMA_FILE_DESCRIPTOR_H_
#define FASTDECODE_RDMA_FILE_DESCRIPTOR_H_

#include <cstdint>
#include <utility>

namespace fastdecode {

// Owns: a file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor() { Close(); }

  void Close();
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// False if `deadline_ns` (NowNs) passed first. A closed socket is readable.
bool WaitReadable(int fd, uint64_t deadline_ns);

// Milliseconds until `deadline_ns` for poll(2), rounded up; 0 if it has passed.
int PollTimeoutMs(uint64_t deadline_ns);

// What is to follow an accept4 that failed, with its errno: where there are no descriptors or no memory left the
// listener stays readable, and poll(2) alone would spin.
void PauseIfExhausted(int error);

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_FILE_DESCRIPTOR_H_
