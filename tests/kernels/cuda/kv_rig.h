#ifndef FASTDECODE_TESTS_KERNELS_CUDA_KV_RIG_H_
#define FASTDECODE_TESTS_KERNELS_CUDA_KV_RIG_H_

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "kernels/cuda/attention_kernels.h"
#include "tests/kernels/cuda/kernel_host.h"
#include "tests/kernels/cuda/typed_array.h"
#include "tests/kernels/paged_sequence.h"

namespace fastdecode {

// What all sequences of a rig have in common.
struct KvCase {
  ElementType wire = ElementType::kF32;  // of q, k, v
  ElementType out = ElementType::kF32;
  KvType kv = KvType::kF32;
  bool tensor_cores = false;
  bool of_chunks = false;  // tiles of tensor cores, where heads are not too long
  int head_dim = 64, padded_head_dim = 64;
  int kv_heads = 1, group = 1, window = 0;
  float soft_cap = 0;
  int max_context = 2048;
  bool uneven_v = false;  // tokens' v are of different magnitudes, some zero
};
std::string Describe(const KvCase& c);

// A home on a GPU: pages full of NaN in memory that ends where nobody may read, handed out in random order;
// random sequences, of which the last tokens are queries. Steps run the kernels as a step of the S-Part does.
// Owns: all memory. Thread: the host's.
class KvRig {
 public:
  KvRig(const KvCase& c, int sequences, int pages, uint64_t seed, KernelHost* host = &EmulatedHost());

  // A sequence of `context` random tokens, the last `queries` of which are to come in steps; the others are appended
  // now. The same seed, the same tokens. Returns its index, which is also its slot.
  int Add(int context, int queries, uint64_t seed);
  // A sequence with the tokens of another one, of which it has those that are stored: it shares whole pages, and its
  // first step copies what is in the last one, if that is not whole.
  int Fork(int parent);

  struct Part {
    int sequence;
    int rows;  // its next ones
  };
  struct How {
    int tile_queries = 16;  // wanted; tensor cores have their own
    unsigned blocks = 3;
    uint64_t seed = 1;
    bool gave_up = false;
    bool takes_back = false;  // the rows count as still to come
  };
  // o [rows][heads][head_dim] of each part, after a check that rows of others were left alone.
  std::vector<std::vector<float>> Step(const std::vector<Part>& parts, const How& how);

  // Makes q of one query, in one head, NaN.
  void SpoilQuery(int index, size_t row, size_t head);
  // k and v as the pages are meant to hold them; q as on the wire, or as tensor cores take it.
  const PagedSequence& sequence(int index) const { return *sequences_[static_cast<size_t>(index)].tokens; }
  // Of row `row` of the queries: how far o may be off before it is rounded to the type of `out`.
  std::vector<double> ErrorBound(int index, int row, const std::vector<double>& magnitude) const;
  // What the page holds.
  float Held(int index, bool of_v, int position, int kv_head, int dim) const;

  const KvCase& c() const { return case_; }

 private:
  struct Sequence {
    std::unique_ptr<PagedSequence> tokens;
    int queries = 0;
    int stored = 0;
    int pages = 0;
    uint32_t copied_page = kNoCopy;  // by its first step
    uint64_t seed = 0;
  };
  // The step's rows, with some of other homes between those of the parts.
  struct StepTables {
    std::vector<StepRow> rows;
    std::vector<KvEntry> entries;
    std::vector<KvTableChange> changes;
    std::unique_ptr<TypedArray> area;
    uint32_t push_rows = 0;  // every other row or so has one
  };

  Sequence Make(int context, int queries, uint64_t seed) const;
  uint32_t* TableOf(int index) const;
  void MakeUneven(std::mt19937* random, std::vector<double>* v) const;
  void RoundQueries(std::vector<double>* q) const;
  StepTables Tables(const std::vector<Part>& parts, std::mt19937* random);
  void PutAreaRow(const Sequence& sequence, int position, uint32_t home_row, TypedArray* area) const;
  void Take(const StepTables& tables, const KvSplit& split, const How& how);
  void Append(const StepTables& tables, const StepState& state, const How& how);
  void Attend(const StepTables& tables, const StepState& state, const KvSplit& split, const How& how, TypedArray* out);
  KvRoster ShareRoster();
  KvSplit Split(int tile_queries) const;
  WireRows Wire() const;
  KvPages SharePages();
  int heads() const { return case_.kv_heads * case_.group; }

  KernelHost* const host_;
  const KvCase case_;
  const size_t sequences_max_, pages_;
  const uint32_t table_pages_;
  const size_t page_bytes_;
  std::mt19937 random_;
  std::vector<Sequence> sequences_;
  std::vector<uint32_t> free_pages_;
  GuardedAreas memory_, tables_, entries_, first_items_;
  KvCounts counts_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_KERNELS_CUDA_KV_RIG_H_
