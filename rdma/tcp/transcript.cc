#include "rdma/tcp/transcript.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <cstring>

#include "numa/check.h"

namespace fastdecode {

namespace {

// Of one length, so that no label and transcript together read like another's.
constexpr char kEngineLabel[] = "fastdecode door, engine";
constexpr char kWorkerLabel[] = "fastdecode door, worker";
static_assert(sizeof(kEngineLabel) == sizeof(kWorkerLabel));

}  // namespace

Mac HmacSha256(const unsigned char* key, size_t key_bytes, const std::string& text) {
  Mac mac;
  unsigned int mac_bytes = 0;
  const unsigned char* const done =
      HMAC(EVP_sha256(), key, static_cast<int>(key_bytes), reinterpret_cast<const unsigned char*>(text.data()),
           text.size(), mac.data(), &mac_bytes);
  FD_CHECK(done != nullptr && mac_bytes == mac.size(), "libcrypto cannot compute HMAC-SHA-256");
  return mac;
}

absl::StatusOr<Nonce> RandomNonce() {
  Nonce nonce;
  if (RAND_bytes(nonce.data(), static_cast<int>(nonce.size())) != 1) {
    return absl::InternalError("no random bytes to be had for a nonce");
  }
  return nonce;
}

Mac Transcript::Sign(Side sender, const std::string& frame) const {
  FD_CHECK(frame.size() >= sizeof(FramePrefix) + sizeof(Mac), "a frame without an HMAC");
  std::string text = sender == Side::kEngine ? kEngineLabel : kWorkerLabel;
  text += frames_;
  text.append(frame, 0, frame.size() - sizeof(Mac));
  return HmacSha256(secret_->data(), secret_->size(), text);
}

void Transcript::SignAndAppend(Side sender, std::string* frame) {
  const Mac mac = Sign(sender, *frame);
  std::memcpy(frame->data() + frame->size() - sizeof(mac), mac.data(), sizeof(mac));
  Append(*frame);
}

bool Transcript::VerifyAndAppend(Side sender, const std::string& frame) {
  const Mac mac = Sign(sender, frame);
  const bool right = CRYPTO_memcmp(mac.data(), frame.data() + frame.size() - sizeof(mac), sizeof(mac)) == 0;
  Append(frame);
  return right;
}

}  // namespace fastdecode
