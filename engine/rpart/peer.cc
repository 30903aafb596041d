#include "engine/rpart/peer.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace fastdecode {

std::string PeerRequest::Describe() const {
  std::string text = absl::StrCat("engine ", id.engine_id);
  if (id.role != 0) absl::StrAppend(&text, " (role ", id.role, ")");
  if (!process.empty()) absl::StrAppend(&text, " at ", process);
  return text;
}

std::string EncodeProposal(const RPartShape& shape, const PeerDemand& demand) {
  std::string blob(sizeof(shape) + sizeof(demand), '\0');
  std::memcpy(blob.data(), &shape, sizeof(shape));
  std::memcpy(blob.data() + sizeof(shape), &demand, sizeof(demand));
  return blob;
}

absl::Status DecodeProposal(const std::string& blob, RPartShape* shape, PeerDemand* demand) {
  constexpr size_t kBoth = sizeof(*shape) + sizeof(*demand);
  if (blob.size() != sizeof(*shape) && blob.size() != kBoth) {
    return absl::InvalidArgumentError(
        absl::StrFormat("R-Part shape of %d bytes, not %d, or %d with a demand", blob.size(), sizeof(*shape), kBoth));
  }
  std::memcpy(shape, blob.data(), sizeof(*shape));
  *demand = PeerDemand();
  if (blob.size() == kBoth) std::memcpy(demand, blob.data() + sizeof(*shape), sizeof(*demand));
  if (demand->version != PeerDemand().version) {
    return absl::InvalidArgumentError(absl::StrFormat("demand on the home: version %d, this worker knows version %d",
                                                      demand->version, PeerDemand().version));
  }
  return absl::OkStatus();
}

}  // namespace fastdecode
