#ifndef FASTDECODE_RDMA_TCP_TRANSCRIPT_H_
#define FASTDECODE_RDMA_TCP_TRANSCRIPT_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "rdma/tcp/frames.h"
#include "rdma/tcp/secret.h"

namespace fastdecode {

// All frames of one handshake so far, both directions, as this end saw them; signs the next one with the secret.
// Thread: one. Bounded: the handshake's six frames.
class Transcript {
 public:
  explicit Transcript(std::shared_ptr<const Secret> secret) : secret_(std::move(secret)) {}

  void Append(const std::string& frame) { frames_ += frame; }
  // Fills in the HMAC that ends `frame`.
  void SignAndAppend(Side sender, std::string* frame);
  // Whether `frame` ends with the HMAC that it must have, if `sender` knows the secret and saw the same frames before.
  // Takes the same time wherever it differs.
  bool VerifyAndAppend(Side sender, const std::string& frame);

 private:
  Mac Sign(Side sender, const std::string& frame) const;

  std::shared_ptr<const Secret> secret_;
  std::string frames_;
};

// HMAC-SHA-256 (RFC 2104) of `text`.
Mac HmacSha256(const unsigned char* key, size_t key_bytes, const std::string& text);

// Internal if the system has no random bytes.
absl::StatusOr<Nonce> RandomNonce();

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_TCP_TRANSCRIPT_H_
