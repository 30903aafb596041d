#include "tests/kernels/cuda/kv_rig.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>

namespace fastdecode {

namespace {

constexpr int kRowsMax = 1024;  // of a step

size_t PageBytesOf(const KvCase& c) { return static_cast<size_t>(c.kv_heads) * GpuHeadBytes(c.kv, c.padded_head_dim); }

// As `from`, but with zeros where heads are padded.
void ClearPadding(const KvCase& c, std::vector<double>* values) {
  for (size_t i = 0; i < values->size(); ++i) {
    if (static_cast<int>(i % static_cast<size_t>(c.padded_head_dim)) >= c.head_dim) (*values)[i] = 0;
  }
}

}  // namespace

std::string Describe(const KvCase& c) {
  return std::string(!c.tensor_cores ? "wire "
                     : c.of_chunks   ? "tensor cores, chunks, wire "
                                     : "tensor cores, wire ") +
         ElementName(c.wire) + " out " + ElementName(c.out) + " KV " + KvTypeName(c.kv) + " head_dim " +
         std::to_string(c.head_dim) + " of " + std::to_string(c.padded_head_dim) + " kv_heads " +
         std::to_string(c.kv_heads) + " group " + std::to_string(c.group) + " window " + std::to_string(c.window) +
         " soft_cap " + std::to_string(c.soft_cap) + " max_context " + std::to_string(c.max_context) +
         (c.uneven_v ? " uneven v" : "");
}

KvRig::KvRig(const KvCase& c, int sequences, int pages, uint64_t seed, KernelHost* host)
    : host_(host),
      case_(c),
      sequences_max_(static_cast<size_t>(sequences)),
      pages_(static_cast<size_t>(pages)),
      table_pages_(static_cast<uint32_t>(c.max_context + kPageTokens - 1) / kPageTokens),
      page_bytes_(PageBytesOf(c)),
      random_(static_cast<unsigned>(seed)),
      free_pages_(static_cast<size_t>(pages)),
      memory_(page_bytes_ * static_cast<size_t>(pages), 1, Flush::kEnd),
      tables_(static_cast<size_t>(sequences) * table_pages_ * sizeof(uint32_t), 1, Flush::kEnd),
      entries_(static_cast<size_t>(sequences) * sizeof(KvEntry), 1, Flush::kEnd),
      first_items_(static_cast<size_t>(sequences + 1) * sizeof(uint32_t), 1, Flush::kEnd) {
  std::iota(free_pages_.begin(), free_pages_.end(), 0u);
  std::shuffle(free_pages_.begin(), free_pages_.end(), random_);
}

KvRig::Sequence KvRig::Make(int context, int queries, uint64_t seed) const {
  AttentionCase tokens;
  tokens.type = case_.wire;
  tokens.kv_type = case_.kv;
  tokens.head_dim = case_.padded_head_dim;
  tokens.group = case_.group;
  tokens.kv_heads = case_.kv_heads;
  tokens.context = context;
  tokens.rows = queries;
  tokens.window = case_.window;
  tokens.soft_cap = case_.soft_cap;
  tokens.scale = 1 / std::sqrt(static_cast<float>(case_.head_dim));
  Sequence sequence;
  sequence.tokens = std::make_unique<PagedSequence>(tokens, seed);
  std::mt19937 random(static_cast<unsigned>(seed));
  if (case_.uneven_v) MakeUneven(&random, &sequence.tokens->in.v);
  for (auto* values : {&sequence.tokens->in.q, &sequence.tokens->in.k, &sequence.tokens->in.v}) {
    ClearPadding(case_, values);
  }
  sequence.tokens->Encode();
  sequence.tokens->held.q = sequence.tokens->in.q;  // which is rounded for tensor cores alone
  if (case_.tensor_cores) RoundQueries(&sequence.tokens->held.q);
  sequence.queries = queries;
  sequence.seed = seed;
  return sequence;
}

int KvRig::Add(int context, int queries, uint64_t seed) {
  sequences_.push_back(Make(context, queries, seed));
  const int index = static_cast<int>(sequences_.size()) - 1;
  while (sequences_.back().stored < context - queries) {
    const int rows = std::min(context - queries - sequences_.back().stored, kRowsMax / 2);
    const StepTables tables = Tables({{index, rows}}, &random_);
    StepState state;
    state.rows = static_cast<uint32_t>(tables.rows.size());
    Take(tables, Split(1), {});
    Append(tables, state, {});
    sequences_.back().stored += rows;
  }
  return index;
}

int KvRig::Fork(int parent) {
  const Sequence& from = sequences_[static_cast<size_t>(parent)];
  Sequence fork = Make(from.tokens->in.context, from.queries, from.seed);
  fork.stored = from.stored;
  fork.pages = from.stored / kPageTokens;
  if (from.stored % kPageTokens != 0) fork.copied_page = TableOf(parent)[fork.pages];
  const int index = static_cast<int>(sequences_.size());
  std::copy_n(TableOf(parent), fork.pages, TableOf(index));
  sequences_.push_back(std::move(fork));
  return index;
}

uint32_t* KvRig::TableOf(int index) const {
  return reinterpret_cast<uint32_t*>(tables_.at()) + static_cast<size_t>(index) * table_pages_;
}

void KvRig::MakeUneven(std::mt19937* random, std::vector<double>* v) const {
  static constexpr double kMagnitudes[] = {0, 0x1p-110, 0x1p-12, 1, 0x1p10, 0x1p24};  // the last one too large for fp16
  const bool has_fp16 = case_.kv == KvType::kFp16 || case_.out == ElementType::kFp16;
  const size_t dims = static_cast<size_t>(case_.padded_head_dim), magnitudes = has_fp16 ? 5 : 6;
  for (size_t first = 0; first < v->size(); first += dims) {
    const double magnitude = kMagnitudes[(*random)() % 9 == 0 ? (*random)() % magnitudes : 3];
    for (size_t d = 0; d < dims; ++d) (*v)[first + d] *= magnitude;
  }
}

// As AttendKvArgs has it.
void KvRig::RoundQueries(std::vector<double>* q) const {
  const size_t dims = static_cast<size_t>(case_.padded_head_dim);
  for (size_t first = 0; first < q->size(); first += dims) {
    const std::span<double> query(q->data() + first, dims);
    double largest = 0;
    for (const double value : query) largest = std::max(largest, std::abs(value));
    const bool codes = case_.kv == KvType::kInt8;
    const int exponent = codes && largest > 0 ? 14 - std::ilogb(largest) : 0;
    for (double& value : query) {
      value = std::ldexp(RoundToKv(codes ? KvType::kFp16 : case_.kv, std::ldexp(value, exponent)), -exponent);
    }
  }
}

void KvRig::SpoilQuery(int index, size_t row, size_t head) {
  std::vector<double>& q = sequences_[static_cast<size_t>(index)].tokens->in.q;
  const size_t dims = static_cast<size_t>(case_.padded_head_dim);
  q[(row * static_cast<size_t>(heads()) + head) * dims] = NAN;
}

KvRig::StepTables KvRig::Tables(const std::vector<Part>& parts, std::mt19937* random) {
  StepTables tables;
  const StepRow other = {.token = -1, .position = 1 << 30, .home = 1u << 30, .home_row = 1u << 30};
  uint32_t home_rows = 0;
  for (const Part& part : parts) home_rows += static_cast<uint32_t>(part.rows);
  const size_t row_elements = static_cast<size_t>(heads() + 2 * case_.kv_heads) * case_.padded_head_dim;
  tables.area = std::make_unique<TypedArray>(case_.wire, home_rows * row_elements);
  uint32_t home_row = 0;
  for (const Part& part : parts) {
    Sequence& sequence = sequences_[static_cast<size_t>(part.sequence)];
    tables.rows.insert(tables.rows.end(), (*random)() % 3, other);
    const auto slot = static_cast<uint32_t>(part.sequence);
    tables.entries.push_back({slot, static_cast<uint32_t>(tables.rows.size()), home_row,
                              static_cast<uint32_t>(part.rows), static_cast<uint32_t>(sequence.stored)});
    for (int r = 0; r < part.rows; ++r) {
      const int position = sequence.stored + r;
      const uint32_t push_row = (*random)() % 2 == 0 ? kNoPush : tables.push_rows++;
      tables.rows.push_back({.position = position, .home_row = home_row, .slot = slot, .push_row = push_row});
      tables.rows.back().copied_page = std::exchange(sequence.copied_page, kNoCopy);
      PutAreaRow(sequence, position, home_row++, tables.area.get());
    }
    for (; sequence.pages * kPageTokens < sequence.stored + part.rows; ++sequence.pages) {
      tables.changes.push_back({slot, static_cast<uint32_t>(sequence.pages), free_pages_.back()});
      free_pages_.pop_back();
    }
  }
  tables.rows.push_back(other);
  return tables;
}

// q is there for queries alone; who looks at that of others meets NaN.
void KvRig::PutAreaRow(const Sequence& sequence, int position, uint32_t home_row, TypedArray* area) const {
  const ReferenceAttentionInput& in = sequence.tokens->in;
  const size_t dims = static_cast<size_t>(case_.padded_head_dim), q_elements = dims * static_cast<size_t>(heads());
  const size_t kv_elements = dims * static_cast<size_t>(case_.kv_heads);
  size_t to = home_row * (q_elements + 2 * kv_elements);
  const int query = position - in.first_row_position;
  for (size_t i = 0; i < q_elements && query >= 0; ++i) {
    area->Set(to + i, static_cast<float>(in.q[static_cast<size_t>(query) * q_elements + i]));
  }
  to += q_elements;
  for (const std::vector<double>* values : {&in.k, &in.v}) {
    for (size_t i = 0; i < kv_elements; ++i) {
      area->Set(to + i, static_cast<float>((*values)[static_cast<size_t>(position) * kv_elements + i]));
    }
    to += kv_elements;
  }
}

KvSplit KvRig::Split(int tile_queries) const {
  const int thread_queries = AttendThreadQueries(tile_queries, case_.padded_head_dim);
  return {case_.kv_heads, case_.group,
          case_.tensor_cores ? TensorTileQueries(case_.of_chunks, case_.padded_head_dim, case_.group)
                             : AttendTileQueries(thread_queries, case_.padded_head_dim),
          CutOf(static_cast<unsigned>(case_.max_context) - 1) + 1, static_cast<unsigned>(case_.window)};
}

WireRows KvRig::Wire() const { return {case_.wire, heads(), case_.kv_heads, case_.head_dim, case_.padded_head_dim}; }

KvPages KvRig::SharePages() {
  const auto* const tables = reinterpret_cast<const uint32_t*>(tables_.at());
  return {case_.kv,
          case_.kv_heads,
          case_.padded_head_dim,
          host_->Share(memory_.at(), page_bytes_ * pages_),
          page_bytes_,
          host_->Show(tables, sequences_max_ * table_pages_),
          table_pages_};
}

KvRoster KvRig::ShareRoster() {
  return {host_->Share(&counts_), host_->Share(reinterpret_cast<KvEntry*>(entries_.at()), sequences_max_),
          host_->Share(reinterpret_cast<uint32_t*>(first_items_.at()), sequences_max_ + 1)};
}

void KvRig::Take(const StepTables& tables, const KvSplit& split, const How& how) {
  const KvBoard board = {static_cast<uint32_t>(tables.entries.size()), static_cast<uint32_t>(tables.changes.size())};
  TakeKvStepArgs args;
  args.board = host_->Show(&board);
  args.board_entries = host_->Show(tables.entries.data(), tables.entries.size());
  args.changes = host_->Show(tables.changes.data(), tables.changes.size());
  args.tables = host_->Share(reinterpret_cast<uint32_t*>(tables_.at()), sequences_max_ * table_pages_);
  args.table_pages = table_pages_;
  args.roster = ShareRoster();
  args.split = split;
  host_->Run(args, how.seed);
}

void KvRig::Append(const StepTables& tables, const StepState& state, const How& how) {
  AppendKvArgs args;
  std::vector<StepRow> rows = tables.rows;
  rows.emplace_back().slot = 0;  // of an earlier step
  args.bucket = static_cast<unsigned>(rows.size());
  args.state = host_->Show(&state);
  args.rows = host_->Show(rows.data(), rows.size());
  args.wire = Wire();
  args.area = host_->Show(tables.area->data(), tables.area->bytes());
  args.pages = SharePages();
  const size_t dims = static_cast<size_t>(case_.padded_head_dim), q_elements = dims * static_cast<size_t>(heads());
  const size_t kv_elements = 2 * dims * static_cast<size_t>(case_.kv_heads);
  const TypedArray push(case_.wire, (tables.push_rows + 1) * kv_elements);
  args.push = host_->Share(push.data(), push.bytes());
  host_->Run(args, how.seed + 1);
  // k and v as they are in the area, of the rows that are pushed and no others.
  const size_t bytes = kv_elements * ElementBytes(case_.wire);
  for (size_t r = 0; r < state.rows; ++r) {
    const StepRow& row = tables.rows[r];
    if (row.push_row == kNoPush) continue;
    const std::byte* const from =
        tables.area->data() + (row.home_row * (q_elements + kv_elements) + q_elements) * ElementBytes(case_.wire);
    EXPECT_EQ(std::memcmp(push.data() + row.push_row * bytes, from, bytes), 0) << "row " << r;
  }
  EXPECT_TRUE(push.untouched(tables.push_rows * kv_elements, kv_elements));
}

void KvRig::Attend(const StepTables& tables, const StepState& state, const KvSplit& split, const How& how,
                   TypedArray* out) {
  uint32_t home_rows = 0;
  for (const KvEntry& entry : tables.entries) home_rows += entry.rows;
  const size_t queries = size_t{home_rows} * static_cast<size_t>(heads()), cuts = queries * split.cuts_max;
  const TypedArray partials(ElementType::kF32, cuts * static_cast<size_t>(case_.padded_head_dim));
  const TypedArray maxima(ElementType::kF32, cuts), sums(ElementType::kF32, cuts);
  std::vector<uint32_t> arrived(queries, 0);
  uint32_t drawn = 0;
  AttendKvArgs args;
  args.state = host_->Show(&state);
  args.roster = ShareRoster();
  args.split = split;
  args.pages = SharePages();
  args.wire = Wire();
  args.area = host_->Show(tables.area->data(), tables.area->bytes());
  args.scale = 1 / std::sqrt(static_cast<float>(case_.head_dim));
  args.soft_cap = case_.soft_cap;
  args.type = case_.out;
  args.out = host_->Share(out->data(), out->bytes());
  args.blocks = how.blocks;
  args.tensor_cores = case_.tensor_cores;
  args.thread_queries = static_cast<int>(split.tile_queries) / AttendGroups(case_.padded_head_dim);
  args.partials = host_->Share(partials.floats(), partials.size());
  args.maxima = host_->Share(maxima.floats(), maxima.size());
  args.sums = host_->Share(sums.floats(), sums.size());
  args.arrived = host_->Share(arrived.data(), arrived.size());
  args.drawn = host_->Share(&drawn);
  host_->Run(args, how.seed + 2);
  EXPECT_TRUE(std::all_of(arrived.begin(), arrived.end(), [](uint32_t count) { return count == 0; }));
  EXPECT_EQ(drawn, 0u);
}

std::vector<std::vector<float>> KvRig::Step(const std::vector<Part>& parts, const How& how) {
  const KvSplit split = Split(how.tile_queries);
  const StepTables tables = Tables(parts, &random_);
  StepState state;
  state.rows = static_cast<uint32_t>(tables.rows.size());
  state.gave_up = how.gave_up;
  const size_t row_elements = static_cast<size_t>(heads()) * static_cast<size_t>(case_.head_dim);
  TypedArray out(case_.out, tables.rows.size() * row_elements);
  Take(tables, split, how);
  Append(tables, state, how);
  Attend(tables, state, split, how, &out);
  std::vector<std::vector<float>> outputs;
  for (const KvEntry& entry : tables.entries) {
    outputs.emplace_back();
    for (size_t i = 0; i < entry.rows * row_elements; ++i) outputs.back().push_back(out[entry.row * row_elements + i]);
  }
  for (size_t r = 0; r < tables.rows.size(); ++r) {
    if (tables.rows[r].slot != kNoSlot && !how.gave_up) continue;
    EXPECT_TRUE(out.untouched(r * row_elements, row_elements)) << "row " << r << " of another home";
  }
  for (const Part& part : parts) {
    if (!how.takes_back) sequences_[static_cast<size_t>(part.sequence)].stored += part.rows;
  }
  return outputs;
}

float KvRig::Held(int index, bool of_v, int position, int kv_head, int dim) const {
  const std::byte* const head = memory_.at() + TableOf(index)[position / kPageTokens] * page_bytes_ +
                                page_bytes_ / static_cast<size_t>(case_.kv_heads) * static_cast<size_t>(kv_head);
  const size_t dims = static_cast<size_t>(case_.padded_head_dim);
  const size_t token = static_cast<size_t>(position % kPageTokens);
  const size_t element = (of_v ? 32 * dims : 0) + token * dims + static_cast<size_t>(dim);
  const auto at = [&]<class T>(T value, size_t i) {
    std::memcpy(&value, head + i * sizeof(T), sizeof(T));
    return value;
  };
  switch (case_.kv) {
    case KvType::kF32:
      return at(float{}, element);
    case KvType::kBf16:
      return FromBf16(at(Bf16{}, element));
    case KvType::kFp16:
      return FromFp16(at(Fp16{}, element));
    default: {
      const Bf16 scale = at(Bf16{}, 32 * dims + (of_v ? 32 : 0) + token);
      return FromBf16(scale) * static_cast<float>(at(uint8_t{}, element) - 128);
    }
  }
}

// u = 2^-24. In units of natural logarithms, S being the largest sum of |q| |k| scale:
// * a score is a chain of head_dim FMAs of a q that was multiplied by a rounded constant, perhaps times a scale of k:
//   (head_dim + 5) u S. A cap has slope <= 1; its tanh (2 ulp) and two products add 6 u cap. The difference from the
//   base: 2 u S.
// * exp2 is off by 2 ulp, 4 u; so is each of the factors by which steps and cuts rescale what came before, plus its
//   argument's 2 u S and a product. Less than 2^-126 may be zero: nothing beside u, the largest weight being 1, or that
//   of codes 1 / v's scale.
// * acc and sum are chains of an FMA a token of a cut, the last of which is the longest, and of one a cut.
// A weight's relative error e moves o = sum(p v) / sum(p) by at most 2 e times sum(p |v|), the magnitude.
// For tensor cores weights are rounded to the type of the KV, or of codes to fp16, in sum(p v) alone: half of its last
// bit, or half of fp16's smallest number, where the largest weight is 1. That of codes is p times v's scale, so that
// the base has that scale's logarithm, down to that of 2^-100, in it: as much as 2 u more of that; and 127 of it are
// v's largest to within the 2^-7 that the scale was rounded up by.
std::vector<double> KvRig::ErrorBound(int index, int row, const std::vector<double>& magnitude) const {
  const ReferenceAttentionInput& in = sequence(index).held;
  const double u = 0x1p-24;
  const bool codes = case_.kv == KvType::kInt8, fp16 = codes || case_.kv == KvType::kFp16;
  const double rounding = !case_.tensor_cores ? 0 : fp16 ? 0x1p-11 : 0x1p-8;  // of 11 bits, 8 bits
  double largest_v = 0;
  for (const double v : in.v) largest_v = std::max(largest_v, std::abs(v));
  const double least = case_.tensor_cores && fp16 ? in.context * 0x1p-25 * (1 + 0x1p-7) * largest_v : 0;
  const double shift = case_.tensor_cores && codes ? std::max(std::log(0x1p100), std::log(largest_v)) : 0;
  const unsigned context = static_cast<unsigned>(in.context), cuts = CutOf(context - 1) + 1;
  const unsigned longest = std::min(context, CutBegin(cuts) - CutBegin(cuts - 1));
  const double steps = longest / 16 + 2 + cuts;
  const double chain = longest + 2 * steps + 4;
  std::vector<double> bound(magnitude.size());
  const size_t dims = static_cast<size_t>(in.head_dim);
  for (int h = 0; h < heads(); ++h) {
    const double* const q =
        &in.q[(static_cast<size_t>(row) * static_cast<size_t>(heads()) + static_cast<size_t>(h)) * dims];
    double most = 0;
    for (int t = 0; t < in.context; ++t) {
      if (!ReferenceSees(in, in.first_row_position + row, t)) continue;
      const double* const k =
          &in.k[(static_cast<size_t>(t) * static_cast<size_t>(in.kv_heads) + static_cast<size_t>(h / in.group)) * dims];
      double sum = 0;
      for (size_t d = 0; d < dims; ++d) sum += std::abs(q[d] * k[d]);
      most = std::max(most, sum * in.scale);
    }
    const double weight =
        (in.head_dim + 7) * u * most + 6 * u * in.soft_cap + 4 * u + steps * (5 * u + 2 * u * (most + shift));
    for (size_t d = 0; d < dims; ++d) {
      const size_t i = static_cast<size_t>(h) * dims + d;
      bound[i] = (2 * (weight + chain * u) + rounding * (1 + weight)) * magnitude[i] + least + 1e-30;
    }
  }
  return bound;
}

}  // namespace fastdecode
