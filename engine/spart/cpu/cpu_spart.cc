#include "engine/spart/cpu/cpu_spart.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "engine/spart/cpu/tiles.h"
#include "numa/check.h"

namespace fastdecode {

namespace {

// Up to so many rows our own kernel is faster than oneDNN 2.6 (docs/PERFORMANCE.md), where it has vdpbf16ps: they are
// level at 64. With tiles it is for all. oneDNN takes tiles wherever they are to be had: if we are told not to, ours
// stays ahead for the fewest rows alone.
constexpr int kOwnRowsMax = 32;
constexpr int kOwnRowsMaxAgainstTiles = 4;

}  // namespace

absl::StatusOr<std::unique_ptr<CpuSPart>> CpuSPart::Create(const ModelSpec& spec, const RPartShape& shape,
                                                           PackedWeights weights, const CpuSPartOptions& options) {
  FD_CHECK(weights.type == options.type, "weights of another type");
  return std::unique_ptr<CpuSPart>(new CpuSPart(spec, shape, std::move(weights), options));
}

CpuSPart::CpuSPart(const ModelSpec& spec, const RPartShape& shape, PackedWeights weights,
                   const CpuSPartOptions& options)
    : spec_(spec),
      shape_(shape),
      options_(options),
      weights_(std::move(weights)),
      weights_memory_(weights_.arena.Describe()),
      gemm_(SelectGemm(options.isa, options.type)),
      ops_(SelectElementwise(options.isa, options.type)),
      ropes_(BuildRopeTables(spec, static_cast<int>(shape.max_context))),
      embedding_scale_(EmbeddingScale(spec, options.type)),
      team_("fd-s", options.cores, options.poll) {
  const int threads = static_cast<int>(options.cores.size());
  // Rows for oneDNN's buckets beyond the last.
  const int rows = options.rows_max + OneDnnGemm::kRowSlack;
  stage_homes_.resize(static_cast<size_t>(options.stage_homes_max));
  attending_.reserve(stage_homes_.size());
  step_attention_.resize(static_cast<size_t>(options.micro_batches));
  for (StepAttention& attention : step_attention_) attention.homes.reserve(stage_homes_.size());
  residual_.resize(options.micro_batches);
  for (std::vector<float>& x : residual_) x.resize(int64_t{options.rows_max} * spec.hidden);
  normed_ = MakeActivations(rows, spec.hidden);
  attended_ = MakeActivations(rows, int64_t{spec.heads} * spec.head_dim);
  activated_ = MakeActivations(rows, spec.intermediate);
  logit_inputs_ = MakeActivations(kLogitRows, spec.hidden);
  projected_.resize(rows * std::max<int64_t>(weights_.layers[0].qkv.n, spec.hidden));
  logits_.resize(int64_t{kLogitRows} * spec.vocab);
  const int unit = spec.gated ? 2 : 1;
  const int units = static_cast<int>(weights_.layers[0].gate_up.panel_count()) / unit;
  for (int t = 0; t < threads; ++t) {
    gate_up_.emplace_back(int64_t{kTileRows} * ((units + threads - 1) / threads) * unit * kPanelColumns);
    sample_scratch_.push_back(std::make_unique<SampleScratch>(spec.vocab));
  }
  const bool use_onednn =
      options.type == ElementType::kBf16 && options.isa == Isa::kAvx512Bf16 && !options.batch_invariant;
  if (use_onednn) MakePrimitives();
  vectors_.layers.resize(weights_.vectors.layers.size());
  ForEachVector(weights_.vectors, &vectors_,
                [](const std::vector<float>& from, const float** to) { *to = DataOrNull(from); });
  MakeSteps();
  team_.Park();  // the first stage wakes it; until then the cores are taking memory for homes
}

void CpuSPart::MakePrimitives() {
  const int threads = static_cast<int>(options_.cores.size());
  std::vector<OneDnnGemm::Shape> shapes;
  const auto add = [&](const PackedMatrix& matrix, int unit) {
    const int64_t k = (matrix.k + kPanelDepth - 1) / kPanelDepth * kPanelDepth;
    for (int t = 0; t < threads; ++t) {
      const Range panels = Share(static_cast<int>(matrix.panel_count()), t, threads, unit);
      if (panels.begin < panels.end) shapes.push_back({k, int64_t{panels.end - panels.begin} * kPanelColumns});
    }
  };
  const PackedLayer& layer = weights_.layers[0];
  add(layer.qkv, 1);
  add(layer.o, 1);
  add(layer.gate_up, spec_.gated ? 2 : 1);
  add(layer.down, 1);
  add(weights_.head, 1);
  onednn_ = OneDnnGemm::Create(shapes, threads);
  if (onednn_ != nullptr) {
    own_rows_max_ = DetectIsa() == Isa::kAmx ? kOwnRowsMaxAgainstTiles : kOwnRowsMax;
  }
}

void CpuSPart::MakeSteps() {
  for (const std::vector<StageOp>& ops : ForwardPass(spec_)) {
    std::vector<Step>& steps = steps_.emplace_back();
    for (const StageOp& op : ops) steps.push_back(MakeStep(op));
  }
}

CpuSPart::Step CpuSPart::MakeStep(const StageOp& op) const {
  using Kind = StageOp::Kind;
  Step step;
  step.op = op;
  step.by_rows =
      op.kind == Kind::kEmbed || op.kind == Kind::kGather || op.kind == Kind::kJoin || op.kind == Kind::kSend;
  if (op.kind != Kind::kJoin) return step;
  const LayerVectorsOf<const float*>& vectors = vectors_.layers[static_cast<size_t>(op.layer)];
  if (op.join.adds != StageOp::Branch::kNone) {
    step.bias = op.join.adds == StageOp::Branch::kAttention ? vectors.o_bias : vectors.down_bias;
  }
  step.after = NormOf(op.join.after);
  step.sum = NormOf(op.join.sum);
  step.next = NormOf(op.join.next);
  return step;
}

RowNorm CpuSPart::NormOf(const NormPlace& place) const {
  if (place.kind == NormPlace::Kind::kNone) return {};
  const auto kind = spec_.norm.kind == NormSpec::Kind::kRms ? RowNorm::Kind::kRms : RowNorm::Kind::kLayer;
  const NormVectorsOf<const float*> vectors = FindNorm(vectors_, place);
  return {kind, vectors.weight, vectors.bias, spec_.norm.epsilon};
}

CpuSPart::Activations CpuSPart::MakeActivations(int rows, int64_t columns) const {
  Activations activations;
  activations.stride = (columns + kPanelDepth - 1) / kPanelDepth * kPanelDepth;
  activations.row_bytes = activations.stride * static_cast<int64_t>(shape_.element_bytes());
  activations.bytes.resize(rows * activations.row_bytes);
  return activations;
}

void CpuSPart::Put(int index, StageHome* home, const std::vector<int>& threads) {
  Attended& attended = stage_homes_[static_cast<size_t>(index)];
  attended.home = home;
  attended.member.assign(options_.cores.size(), -1);
  for (size_t i = 0; i < threads.size(); ++i) {
    FD_CHECK(threads[i] < team_.thread_count(), "a home's thread is one of the team");
    attended.member[static_cast<size_t>(threads[i])] = static_cast<int>(i);
  }
}

std::string CpuSPart::Describe() const {
  std::string cores;
  for (const int core : options_.cores) cores += absl::StrFormat("%s%d", cores.empty() ? "" : ",", core);
  return absl::StrFormat("cpu, %s, %s%s%s, %d thread(s) on core(s) %s, weights %s", ElementName(options_.type),
                         gemm_.name, onednn_ == nullptr ? "" : " + oneDNN " + onednn_->implementation(),
                         options_.batch_invariant ? ", batch-invariant" : "", options_.cores.size(), cores,
                         weights_memory_);
}

}  // namespace fastdecode
