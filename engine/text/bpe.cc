#include "engine/text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/utf8.h"
#include "numa/check.h"

namespace fastdecode {
namespace {

constexpr uint64_t PairKey(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

// Below this many symbols, looking at all pairs for the next merge is faster than a heap.
constexpr size_t kFewSymbols = 24;

std::string_view FirstUtf8(std::string_view text) { return text.substr(0, NextUtf8(text).bytes); }

}  // namespace

// What Encode has read of a piece and not merged yet: symbols that later ones may still join.
struct Bpe::Stretch {
  std::string_view piece;
  Scratch* scratch;
  std::vector<int32_t>* ids;
  size_t begin = 0;   // in the piece
  bool plain = true;  // the symbols spell the text, so that the text says what they become
};

Bpe::Bpe(const TokenizerSpec& spec)
    : byte_level_(spec.IsByteLevel()),
      unknown_id_(spec.unknown_id.value_or(-1)),
      fuse_unknown_(spec.fuse_unknown),
      ignore_merges_(spec.ignore_merges) {
  FD_CHECK(spec.merges.size() < size_t{std::numeric_limits<int32_t>::max()}, "ranks are int32");
  merges_.reserve(spec.merges.size());
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const BpeMerge& merge = spec.merges[rank];
    merges_[PairKey(merge.left, merge.right)] = {static_cast<int32_t>(rank),
                                                 merge.merged};  // the last of equals counts
  }
  ReadTokens(spec);
  ReadJoints(spec);
  ReadWholes(spec);
}

void Bpe::ReadTokens(const TokenizerSpec& spec) {
  byte_ids_.fill(-1);
  if (!byte_level_) character_ids_.assign(0x10000, -1);
  for (const VocabEntry& entry : spec.vocab) {
    if (byte_level_) {
      const std::optional<std::string> bytes = ByteLevelBytes(entry.key);
      if (bytes.has_value() && bytes->size() == 1) byte_ids_[static_cast<uint8_t>((*bytes)[0])] = entry.id;
      continue;
    }
    if (spec.byte_fallback) {
      const std::optional<uint8_t> byte = ByteOfFallbackToken(entry.key);
      if (byte.has_value() && entry.key == ByteFallbackToken(*byte)) byte_ids_[*byte] = entry.id;
    }
    if (entry.key.empty() || FirstUtf8(entry.key).size() != entry.key.size()) continue;
    const char32_t character = Utf8Character(entry.key, entry.key.size());
    if (character < character_ids_.size()) {
      character_ids_[character] = entry.id;
    } else {
      far_characters_[character] = entry.id;
    }
  }
}

// A merge joins the last symbol of one token with the first of another. Where no merge of the vocabulary joins two
// symbols, what stands left of them and what stands right can be merged apart.
void Bpe::ReadJoints(const TokenizerSpec& spec) {
  std::vector<std::pair<int32_t, int32_t>> ends;  // by id: the first and the last symbol of a token
  absl::flat_hash_set<int32_t> without_text;      // symbols that do not stand for their own text
  const auto symbol = [&](std::string_view character) {
    return byte_level_ ? byte_ids_[static_cast<uint8_t>(character[0])]
                       : CharacterId(Utf8Character(character, character.size()));
  };
  for (const VocabEntry& entry : spec.vocab) {
    if (ends.size() <= static_cast<size_t>(entry.id)) ends.resize(entry.id + 1, {-1, -1});
    const std::string text = byte_level_ ? ByteLevelBytes(entry.key).value_or("") : entry.key;
    if (text.empty()) continue;
    ends[entry.id] = byte_level_ ? std::pair(symbol(text.substr(0, 1)), symbol(text.substr(text.size() - 1)))
                                 : std::pair(symbol(FirstUtf8(text)), symbol(LastUtf8(text)));
  }
  if (unknown_id_ >= 0) without_text.insert(unknown_id_);
  if (!byte_level_) without_text.insert(byte_ids_.begin(), byte_ids_.end());
  absl::flat_hash_set<uint64_t> pairs;
  for (const BpeMerge& merge : spec.merges) {
    if (without_text.contains(merge.left) || without_text.contains(merge.right)) return;
    pairs.insert(PairKey(ends[merge.left].second, ends[merge.right].first));
  }
  joints_.resize(std::clamp(std::bit_ceil(pairs.size()) / 4, size_t{64}, size_t{1} << 14));
  for (const uint64_t pair : pairs) {
    const uint64_t bit = JointBit(static_cast<int32_t>(pair >> 32), static_cast<int32_t>(pair));
    joints_[bit / 64] |= uint64_t{1} << bit % 64;
  }
}

// Fibonacci hashing, whose upper bits are good.
uint64_t Bpe::JointBit(int32_t left, int32_t right) const {
  return PairKey(left, right) * 0x9E3779B97F4A7C15u >> (64 - std::countr_zero(joints_.size() * 64));
}

void Bpe::ReadWholes(const TokenizerSpec& spec) {
  wholes_.reserve(spec.vocab.size());
  Scratch scratch;
  std::vector<int32_t> ids;
  for (const VocabEntry& entry : spec.vocab) {
    const std::optional<std::string> text = byte_level_ ? ByteLevelBytes(entry.key) : entry.key;
    if (!text.has_value() || text->empty()) continue;  // no text is spelt so
    Whole whole = {ignore_merges_ ? entry.id : -1, -1};
    ids.clear();
    byte_level_ ? EncodeBytes(*text, &scratch, &ids) : EncodeCharacters(*text, &scratch, &ids);
    if (ids.size() == 1) whole.merged_id = ids[0];  // another one, if the vocabulary lacks a byte of it
    if (whole.id < 0 && whole.merged_id < 0) continue;
    wholes_.emplace(*text, whole);
    whole_bytes_max_ = std::max(whole_bytes_max_, text->size());
  }
}

void Bpe::Encode(std::string_view piece, Scratch* scratch, std::vector<int32_t>* ids) const {
  FD_CHECK(piece.size() < size_t{std::numeric_limits<int32_t>::max()}, "positions are int32");
  if (const Whole* whole = FindWhole(piece)) {
    ids->push_back(whole->id >= 0 ? whole->id : whole->merged_id);
  } else if (byte_level_) {
    EncodeBytes(piece, scratch, ids);
  } else {
    EncodeCharacters(piece, scratch, ids);
  }
}

const Bpe::Whole* Bpe::FindWhole(std::string_view text) const {
  if (text.size() > whole_bytes_max_) return nullptr;
  const auto found = wholes_.find(absl::string_view(text.data(), text.size()));
  return found == wholes_.end() ? nullptr : &found->second;
}

int32_t Bpe::CharacterId(char32_t character) const {
  if (character < character_ids_.size()) return character_ids_[character];
  const auto found = far_characters_.find(character);
  return found == far_characters_.end() ? -1 : found->second;
}

void Bpe::EncodeBytes(std::string_view piece, Scratch* scratch, std::vector<int32_t>* ids) const {
  scratch->symbols_.clear();
  Stretch stretch = {piece, scratch, ids};
  bool after_unknown = false;
  for (size_t at = 0; at < piece.size(); ++at) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(piece[at])];
    const bool unknown = id < 0;
    if (!unknown) {
      Append(id, at, /*plain=*/true, &stretch);
    } else if (unknown_id_ < 0 || (fuse_unknown_ && after_unknown)) {
      stretch.plain = false;
    } else {
      Append(unknown_id_, at, /*plain=*/false, &stretch);
    }
    after_unknown = unknown;
  }
  Flush(&stretch, piece.size());
}

// An unknown token waits until the next known character, so that the bytes of characters in between come before it, as
// in Hugging Face's implementation.
void Bpe::EncodeCharacters(std::string_view piece, Scratch* scratch, std::vector<int32_t>* ids) const {
  scratch->symbols_.clear();
  Stretch stretch = {piece, scratch, ids};
  bool unknown_waits = false;
  for (size_t at = 0, bytes = 0; at < piece.size(); at += bytes) {
    bytes = NextUtf8(piece.substr(at)).bytes;
    const int32_t id = CharacterId(Utf8Character(piece.substr(at), bytes));
    if (id >= 0) {
      if (unknown_waits) Append(unknown_id_, at, /*plain=*/false, &stretch);
      unknown_waits = false;
      Append(id, at, /*plain=*/true, &stretch);
    } else if (AppendBytes(piece.substr(at, bytes), at, &stretch)) {
      continue;
    } else if (unknown_id_ < 0) {
      stretch.plain = false;
    } else if (!unknown_waits) {
      unknown_waits = true;
    } else if (!fuse_unknown_) {
      Append(unknown_id_, at, /*plain=*/false, &stretch);
    }
  }
  if (unknown_waits) Append(unknown_id_, piece.size(), /*plain=*/false, &stretch);
  Flush(&stretch, piece.size());
}

bool Bpe::AppendBytes(std::string_view character, size_t at, Stretch* stretch) const {
  for (const char byte : character) {
    if (byte_ids_[static_cast<uint8_t>(byte)] < 0) return false;
  }
  for (const char byte : character) Append(byte_ids_[static_cast<uint8_t>(byte)], at, /*plain=*/false, stretch);
  return true;
}

void Bpe::Append(int32_t id, size_t at, bool plain, Stretch* stretch) const {
  std::vector<int32_t>& symbols = stretch->scratch->symbols_;
  if (!symbols.empty() && !MayJoin(symbols.back(), id)) Flush(stretch, at);
  stretch->plain &= plain;
  symbols.push_back(id);
}

void Bpe::Flush(Stretch* stretch, size_t end) const {
  const std::string_view text = stretch->piece.substr(stretch->begin, end - stretch->begin);
  const Whole* whole = stretch->plain && text.size() < stretch->piece.size() ? FindWhole(text) : nullptr;
  if (whole != nullptr && whole->merged_id >= 0) {
    stretch->ids->push_back(whole->merged_id);
  } else if (stretch->scratch->symbols_.size() <= kFewSymbols) {
    MergeFew(&stretch->scratch->symbols_, stretch->ids);
  } else {
    MergeMany(stretch->scratch, stretch->ids);
  }
  stretch->scratch->symbols_.clear();
  stretch->begin = end;
  stretch->plain = true;
}

void Bpe::Scratch::Candidates::Clear() {
  positions_.clear();
  next_ = 0;
  is_heap_ = false;
}

void Bpe::Scratch::Candidates::Push(int32_t position) {
  if (!is_heap_ && !empty() && position < positions_.back()) {
    positions_.erase(positions_.begin(), positions_.begin() + static_cast<ptrdiff_t>(next_));
    next_ = 0;
    is_heap_ = true;
    std::make_heap(positions_.begin(), positions_.end(), std::greater<>());
  }
  positions_.push_back(position);
  if (is_heap_) std::push_heap(positions_.begin(), positions_.end(), std::greater<>());
}

int32_t Bpe::Scratch::Candidates::Pop() {
  if (!is_heap_) return positions_[next_++];
  std::pop_heap(positions_.begin(), positions_.end(), std::greater<>());
  const int32_t position = positions_.back();
  positions_.pop_back();
  return position;
}

bool Bpe::MayJoin(int32_t left, int32_t right) const {
  if (joints_.empty()) return true;
  const uint64_t bit = JointBit(left, right);
  return (joints_[bit / 64] >> bit % 64 & 1) != 0;
}

const Bpe::MergeResult* Bpe::FindMerge(int32_t left, int32_t right) const {
  const auto found = merges_.find(PairKey(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void Bpe::MergeFew(std::vector<int32_t>* symbols, std::vector<int32_t>* ids) const {
  constexpr MergeResult kNone = {std::numeric_limits<int32_t>::max(), -1};
  MergeResult merges[kFewSymbols];  // of each symbol with the next
  size_t size = symbols->size();
  const auto look = [&](size_t i) {
    const MergeResult* merge = FindMerge((*symbols)[i], (*symbols)[i + 1]);
    merges[i] = merge == nullptr ? kNone : *merge;
  };
  for (size_t i = 0; i + 1 < size; ++i) look(i);
  while (size > 1) {
    const auto by_rank = [](const MergeResult& a, const MergeResult& b) { return a.rank < b.rank; };
    const size_t at = std::min_element(merges, merges + size - 1, by_rank) - merges;
    if (merges[at].merged < 0) break;
    (*symbols)[at] = merges[at].merged;
    symbols->erase(symbols->begin() + static_cast<ptrdiff_t>(at) + 1);
    std::copy(merges + at + 1, merges + size - 1, merges + at);
    --size;
    if (at > 0) look(at - 1);
    if (at + 1 < size) look(at);
  }
  ids->insert(ids->end(), symbols->begin(), symbols->end());
}

void Bpe::PushCandidate(int32_t position, Scratch* scratch) const {
  const Scratch::Symbol& left = scratch->linked_[position];
  const MergeResult* merge = FindMerge(left.id, scratch->linked_[left.next].id);
  if (merge == nullptr) return;
  const auto [place, is_new] = scratch->candidates_of_rank_.try_emplace(merge->rank, scratch->used_);
  if (is_new && ++scratch->used_ > scratch->candidates_.size()) scratch->candidates_.emplace_back();
  Scratch::Candidates& candidates = scratch->candidates_[place->second];
  if (is_new) candidates.Clear();
  if (candidates.empty()) {
    candidates.Clear();
    scratch->ranks_.push_back(merge->rank);
    std::push_heap(scratch->ranks_.begin(), scratch->ranks_.end(), std::greater<>());
  }
  candidates.Push(position);
}

// Candidates wait by their rank, and those of one rank mostly come from left to right. So this takes time in proportion
// to the text where a heap of all candidates would leave the caches.
void Bpe::MergeMany(Scratch* scratch, std::vector<int32_t>* ids) const {
  std::vector<Scratch::Symbol>& symbols = scratch->linked_;
  symbols.clear();
  scratch->candidates_of_rank_.clear();
  scratch->used_ = 0;
  scratch->ranks_.clear();
  for (const int32_t id : scratch->symbols_) {
    const auto position = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, position - 1, position + 1});
  }
  symbols.back().next = -1;
  const auto size = static_cast<int32_t>(symbols.size());
  for (int32_t i = 0; i + 1 < size; ++i) PushCandidate(i, scratch);
  while (!scratch->ranks_.empty()) {
    const int32_t rank = scratch->ranks_.front();
    Scratch::Candidates& candidates = scratch->candidates_[scratch->candidates_of_rank_.at(rank)];
    const int32_t position = candidates.Pop();
    if (candidates.empty()) {
      std::pop_heap(scratch->ranks_.begin(), scratch->ranks_.end(), std::greater<>());
      scratch->ranks_.pop_back();
    }
    Scratch::Symbol& left = symbols[position];
    if (left.id < 0 || left.next < 0) continue;
    Scratch::Symbol& right = symbols[left.next];
    const MergeResult* merge = FindMerge(left.id, right.id);
    if (merge == nullptr || merge->rank != rank) continue;  // its neighbours have changed since
    left.id = merge->merged;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[left.next].previous = position;
    if (left.previous >= 0) PushCandidate(left.previous, scratch);
    if (left.next >= 0) PushCandidate(position, scratch);
  }
  for (const Scratch::Symbol& symbol : symbols) {
    if (symbol.id >= 0) ids->push_back(symbol.id);
  }
}

}  // namespace fastdecode
