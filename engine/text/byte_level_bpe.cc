#include "engine/text/byte_level_bpe.h"

#include <algorithm>
#include <limits>

#include "absl/strings/string_view.h"
#include "engine/text/utf8.h"
#include "numa/check.h"

namespace fastdecode {
namespace {

// Bytes that are printable Latin-1 stand for themselves; the others get the characters from U+0100 on, in order.
constexpr bool StandsForItself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

struct ByteAlphabet {
  std::array<char16_t, 256> character_of;
  std::array<int16_t, 0x144> byte_of;  // -1: stands for no byte

  constexpr ByteAlphabet() : character_of(), byte_of() {
    byte_of.fill(-1);
    char16_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      character_of[byte] = StandsForItself(byte) ? static_cast<char16_t>(byte) : next++;
      byte_of[character_of[byte]] = static_cast<int16_t>(byte);
    }
  }
};
constexpr ByteAlphabet kAlphabet;

constexpr uint64_t PairKey(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

}  // namespace

std::string ByteLevelCharacter(uint8_t byte) {
  std::string out;
  AppendUtf8(kAlphabet.character_of[byte], &out);
  return out;
}

std::optional<std::string> ByteLevelBytes(std::string_view key) {
  std::string bytes;
  while (!key.empty()) {
    const Utf8Step step = NextUtf8(key);
    if (step.kind != Utf8Step::Kind::kValid) return std::nullopt;
    const char32_t character = Utf8Character(key, step.bytes);
    if (character >= kAlphabet.byte_of.size() || kAlphabet.byte_of[character] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kAlphabet.byte_of[character]));
    key.remove_prefix(step.bytes);
  }
  return bytes;
}

ByteLevelBpe::ByteLevelBpe(const TokenizerSpec& spec)
    : unknown_id_(spec.unknown_id.value_or(-1)), fuse_unknown_(spec.fuse_unknown) {
  FD_CHECK(spec.merges.size() < size_t{std::numeric_limits<int32_t>::max()}, "ranks are int32");
  merges_.reserve(spec.merges.size());
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const BpeMerge& merge = spec.merges[rank];
    merges_[PairKey(merge.left, merge.right)] = {static_cast<int32_t>(rank),
                                                 merge.merged};  // the last of equals counts
  }
  byte_ids_.fill(-1);
  std::vector<std::pair<std::string, int32_t>> tokens;
  tokens.reserve(spec.vocab.size());
  for (const VocabEntry& entry : spec.vocab) {
    std::optional<std::string> bytes = ByteLevelBytes(entry.key);
    if (!bytes.has_value() || bytes->empty()) continue;  // no text is spelt so
    if (bytes->size() == 1) byte_ids_[static_cast<uint8_t>((*bytes)[0])] = entry.id;
    tokens.emplace_back(*std::move(bytes), entry.id);
  }
  whole_pieces_.reserve(tokens.size());
  Scratch scratch;
  std::vector<int32_t> ids;
  for (auto& [bytes, id] : tokens) {
    if (!spec.ignore_merges) {
      ids.clear();
      MergeAll(bytes, &scratch, &ids);
      if (ids.size() != 1) continue;
      id = ids[0];  // another one, if the vocabulary lacks a byte of it
    }
    whole_pieces_.emplace(std::move(bytes), id);
  }
}

void ByteLevelBpe::Encode(std::string_view piece, Scratch* scratch, std::vector<int32_t>* ids) const {
  const auto whole = whole_pieces_.find(absl::string_view(piece.data(), piece.size()));
  if (whole != whole_pieces_.end()) {
    ids->push_back(whole->second);
  } else {
    MergeAll(piece, scratch, ids);
  }
}

const ByteLevelBpe::MergeResult* ByteLevelBpe::FindMerge(int32_t left, int32_t right) const {
  const auto found = merges_.find(PairKey(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

namespace {
// For std::push_heap and pop_heap: the lowest rank, then the leftmost, comes out first.
constexpr auto kComesLater = [](const auto& a, const auto& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
};
}  // namespace

void ByteLevelBpe::PushCandidate(int32_t position, Scratch* scratch) const {
  const Scratch::Symbol& left = scratch->symbols_[position];
  const MergeResult* merge = FindMerge(left.id, scratch->symbols_[left.next].id);
  if (merge == nullptr) return;
  scratch->queue_.push_back({merge->rank, position, merge->merged});
  std::push_heap(scratch->queue_.begin(), scratch->queue_.end(), kComesLater);
}

void ByteLevelBpe::MergeAll(std::string_view piece, Scratch* scratch, std::vector<int32_t>* ids) const {
  FD_CHECK(piece.size() < size_t{std::numeric_limits<int32_t>::max()}, "positions are int32");
  std::vector<Scratch::Symbol>& symbols = scratch->symbols_;
  std::vector<Scratch::Candidate>& queue = scratch->queue_;
  symbols.clear();
  queue.clear();
  bool after_unknown = false;
  for (const char c : piece) {
    const int32_t byte_id = byte_ids_[static_cast<uint8_t>(c)];
    const bool unknown = byte_id < 0;
    const bool left_out = unknown && (unknown_id_ < 0 || (fuse_unknown_ && after_unknown));
    after_unknown = unknown;
    if (left_out) continue;
    const auto position = static_cast<int32_t>(symbols.size());
    symbols.push_back({unknown ? unknown_id_ : byte_id, position - 1, position + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;
  const auto size = static_cast<int32_t>(symbols.size());
  for (int32_t i = 0; i + 1 < size; ++i) PushCandidate(i, scratch);
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), kComesLater);
    const Scratch::Candidate top = queue.back();
    queue.pop_back();
    Scratch::Symbol& left = symbols[top.position];
    if (left.id < 0 || left.next < 0) continue;
    Scratch::Symbol& right = symbols[left.next];
    // A candidate is stale if its neighbours have changed, unless they now merge into the very same token: then it
    // counts at its old rank, as in Hugging Face's implementation.
    const MergeResult* merge = FindMerge(left.id, right.id);
    if (merge == nullptr || merge->merged != top.merged) continue;
    left.id = top.merged;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[left.next].previous = top.position;
    if (left.previous >= 0) PushCandidate(left.previous, scratch);
    if (left.next >= 0) PushCandidate(top.position, scratch);
  }
  for (const Scratch::Symbol& symbol : symbols) {
    if (symbol.id >= 0) ids->push_back(symbol.id);
  }
}

}  // namespace fastdecode
