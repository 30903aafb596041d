#ifndef FASTDECODE_ENGINE_TEXT_BYTE_LEVEL_BPE_H_
#define FASTDECODE_ENGINE_TEXT_BYTE_LEVEL_BPE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/text/tokenizer_spec.h"

namespace fastdecode {

// Byte-level vocabularies spell each byte as one printable character (GPT-2's table).
std::string ByteLevelCharacter(uint8_t byte);
// The bytes that `key` spells; nothing if one of its characters stands for no byte.
std::optional<std::string> ByteLevelBytes(std::string_view key);

// Byte-pair encoding over bytes: a piece starts as one token a byte, and the neighbours of lowest rank (leftmost first)
// are merged until none can be. Where the vocabulary lacks a byte, the unknown token stands for it; if there is none,
// the bytes around it are neighbours.
//
// Thread: immutable, shared by any number, each with its own Scratch. Bounded: n bytes take O(n log n) time, O(n)
// memory.
class ByteLevelBpe {
 public:
  // Working memory of Encode; reuse it.
  class Scratch {
    friend class ByteLevelBpe;
    struct Symbol {
      int32_t id;  // -1: merged into the one before
      int32_t previous;
      int32_t next;
    };
    struct Candidate {
      int32_t rank;
      int32_t position;  // of the left symbol
      int32_t merged;
    };
    std::vector<Symbol> symbols_;
    std::vector<Candidate> queue_;  // a heap, the next merge first
  };

  explicit ByteLevelBpe(const TokenizerSpec& spec);

  // Appends the tokens of one piece. REQUIRES: fewer than 2^31 bytes.
  void Encode(std::string_view piece, Scratch* scratch, std::vector<int32_t>* ids) const;

 private:
  struct MergeResult {
    int32_t rank;
    int32_t merged;
  };

  const MergeResult* FindMerge(int32_t left, int32_t right) const;
  void PushCandidate(int32_t position, Scratch* scratch) const;
  void MergeAll(std::string_view piece, Scratch* scratch, std::vector<int32_t>* ids) const;

  std::array<int32_t, 256> byte_ids_;  // -1: the vocabulary lacks it
  const int32_t unknown_id_;           // -1: there is none
  const bool fuse_unknown_;
  absl::flat_hash_map<uint64_t, MergeResult> merges_;  // by (left << 32 | right)
  // Pieces whose encoding is known to be one token: all tokens with ignore_merges, else those that merging arrives at.
  absl::flat_hash_map<std::string, int32_t> whole_pieces_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_BYTE_LEVEL_BPE_H_
