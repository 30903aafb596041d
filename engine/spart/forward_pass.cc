#include "engine/spart/forward_pass.h"

#include "numa/check.h"

namespace fastdecode {
namespace {

using Op = StageOp::Kind;
using Place = NormPlace::Kind;

// Adds the operations of one stage.
class StageMaker {
 public:
  StageMaker(const ModelSpec& spec, std::vector<StageOp>* ops) : spec_(spec), ops_(*ops) {}

  void Add(Op kind, int layer) { ops_.push_back({kind, layer, {}}); }

  // x without a sum; `next` is what is computed of it.
  void Norm(const NormPlace& next, int layer) {
    StageOp op = {Op::kJoin, layer, {}};
    op.join.next = next;
    ops_.push_back(op);
  }

  void Sum(StageOp::Branch branch, int layer, const NormPlace& next, bool makes_normed = true) {
    const bool attention = branch == StageOp::Branch::kAttention;
    StageOp op = {Op::kJoin, layer, {}};
    op.join.adds = branch;
    if (spec_.norm_after) op.join.after = {attention ? Place::kAttentionAfter : Place::kMlpAfter, layer};
    if (spec_.norm_sum) op.join.sum = {attention ? Place::kAttention : Place::kMlp, layer};
    op.join.makes_normed = makes_normed;
    op.join.next = next;
    ops_.push_back(op);
  }

  NormPlace Before(Place place, int layer) const { return spec_.norm_before ? NormPlace{place, layer} : NormPlace{}; }
  // What the rows behind layer `layer` are for: the next one's attention, or the head.
  NormPlace Behind(int layer) const {
    if (layer + 1 < spec_.layers) return Before(Place::kAttention, layer + 1);
    return spec_.final_norm ? NormPlace{Place::kFinal, 0} : NormPlace{};
  }

  void Mlp(int layer) {
    Add(Op::kGateUp, layer);
    Add(Op::kDown, layer);
  }

  // From o of a layer to its end.
  void FinishLayer(int layer) {
    using enum StageOp::Branch;
    Add(Op::kGather, layer);
    if (spec_.parallel) {
      // Both branches see x as the layer began.
      Norm(Before(spec_.one_norm ? Place::kAttention : Place::kMlp, layer), layer);
      Add(Op::kOut, layer);
      Sum(kAttention, layer, {}, /*makes_normed=*/false);
      Mlp(layer);
      Sum(kMlp, layer, Behind(layer));
      return;
    }
    Add(Op::kOut, layer);
    Sum(kAttention, layer, Before(Place::kMlp, layer));
    Mlp(layer);
    Sum(kMlp, layer, Behind(layer));
  }

 private:
  const ModelSpec& spec_;
  std::vector<StageOp>& ops_;
};

}  // namespace

std::vector<std::vector<StageOp>> ForwardPass(const ModelSpec& spec) {
  std::vector<std::vector<StageOp>> stages(static_cast<size_t>(spec.layers) + 1);
  for (int stage = 0; stage <= spec.layers; ++stage) {
    StageMaker maker(spec, &stages[static_cast<size_t>(stage)]);
    if (stage == 0) {
      maker.Add(Op::kEmbed, 0);
      maker.Norm(maker.Before(Place::kAttention, 0), 0);
    } else {
      maker.FinishLayer(stage - 1);
    }
    if (stage == spec.layers) {
      maker.Add(Op::kLogits, stage);
      break;
    }
    maker.Add(Op::kQkv, stage);
    maker.Add(Op::kSend, stage);
  }
  return stages;
}

float EmbeddingScale(const ModelSpec& spec, ElementType type) {
  const float scale = static_cast<float>(spec.embedding_scale);
  if (!spec.scale_in_type) return scale;
  switch (type) {
    case ElementType::kF32:
      return scale;
    case ElementType::kBf16:
      return FromBf16(ToBf16(scale));
    case ElementType::kFp16:
      return FromFp16(ToFp16(scale));
  }
  return scale;
}

}  // namespace fastdecode
