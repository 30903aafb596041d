#ifndef FASTDECODE_ENGINE_TEXT_BPE_H_
#define FASTDECODE_ENGINE_TEXT_BPE_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/text/tokenizer_spec.h"

namespace fastdecode {

// Byte-pair encoding, with the ids that Hugging Face's BPE gives: a piece starts as one symbol a byte (byte-level
// vocabularies) or a character, and the neighbours of lowest rank (leftmost first) are merged until none can be. A
// character that is no token becomes the tokens of its bytes where the vocabulary has byte fallback and all of them.
// What is unknown then becomes the unknown token; if there is none, the symbols around it are neighbours.
//
// Thread: immutable, shared by any number, each with its own Scratch. Bounded: n bytes take O(n log n) time, O(n)
// memory.
class Bpe {
 public:
  // Working memory of Encode; reuse it.
  class Scratch {
    friend class Bpe;
    struct Symbol {
      int32_t id;  // -1: merged into the one before
      int32_t previous;
      int32_t next;
    };
    // Where merges of one rank may be done (positions of left symbols): leftmost first.
    class Candidates {
     public:
      bool empty() const { return next_ == positions_.size(); }
      void Clear();
      void Push(int32_t position);
      int32_t Pop();

     private:
      std::vector<int32_t> positions_;  // from next_ on; in order, unless is_heap_
      size_t next_ = 0;
      bool is_heap_ = false;
    };
    std::vector<int32_t> symbols_;  // the initial ones of a stretch
    std::vector<Symbol> linked_;
    std::vector<Candidates> candidates_;  // the first used_ are in use
    size_t used_ = 0;
    absl::flat_hash_map<int32_t, size_t> candidates_of_rank_;
    std::vector<int32_t> ranks_;  // of candidates; a heap, the lowest first
  };

  explicit Bpe(const TokenizerSpec& spec);

  // Appends the tokens of one piece: bytes as they are where the vocabulary is byte-level, else UTF-8.
  // REQUIRES: fewer than 2^31 bytes.
  void Encode(std::string_view piece, Scratch* scratch, std::vector<int32_t>* ids) const;

 private:
  struct MergeResult {
    int32_t rank;
    int32_t merged;
  };
  // What is known of a text that is a token's.
  struct Whole {
    int32_t id;         // the token, for vocabularies that ignore merges; else -1
    int32_t merged_id;  // what merging gives, if that is one token; else -1
  };

  struct Stretch;  // the part of a piece that is being read

  void ReadTokens(const TokenizerSpec& spec);
  void ReadJoints(const TokenizerSpec& spec);
  void ReadWholes(const TokenizerSpec& spec);
  int32_t CharacterId(char32_t character) const;
  const Whole* FindWhole(std::string_view text) const;
  void EncodeBytes(std::string_view piece, Scratch* scratch, std::vector<int32_t>* ids) const;
  void EncodeCharacters(std::string_view piece, Scratch* scratch, std::vector<int32_t>* ids) const;
  // Appends a symbol that stands at `at` in the piece, after a cut if no merge can join it with the one before.
  // `plain`: it stands for its own text.
  void Append(int32_t id, size_t at, bool plain, Stretch* stretch) const;
  // The same for the tokens of the character's bytes, unless one is lacking.
  bool AppendBytes(std::string_view character, size_t at, Stretch* stretch) const;
  // Merges what has been read.
  void Flush(Stretch* stretch, size_t end) const;
  uint64_t JointBit(int32_t left, int32_t right) const;
  bool MayJoin(int32_t left, int32_t right) const;
  const MergeResult* FindMerge(int32_t left, int32_t right) const;
  void MergeFew(std::vector<int32_t>* symbols, std::vector<int32_t>* ids) const;
  void MergeMany(Scratch* scratch, std::vector<int32_t>* ids) const;
  void PushCandidate(int32_t position, Scratch* scratch) const;

  const bool byte_level_;
  const int32_t unknown_id_;  // -1: there is none
  const bool fuse_unknown_;
  const bool ignore_merges_;
  std::array<int32_t, 256> byte_ids_;                      // of one byte; -1: the vocabulary lacks it
  std::vector<int32_t> character_ids_;                     // of the characters below U+10000; -1 as above
  absl::flat_hash_map<char32_t, int32_t> far_characters_;  // of the others
  absl::flat_hash_map<uint64_t, MergeResult> merges_;      // by (left << 32 | right)
  // Whether a merge may ever join two initial symbols that are neighbours; by a hash of both, so that it may say yes
  // where no is right. Empty: always.
  std::vector<uint64_t> joints_;
  absl::flat_hash_map<std::string, Whole> wholes_;
  size_t whole_bytes_max_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_BPE_H_
