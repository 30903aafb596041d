#include "engine/rpart/random_kv.h"

#include <algorithm>
#include <cstring>

namespace fastdecode {

namespace {

constexpr uint64_t kWindowStarts = 4096;

// SplitMix64's finaliser: every bit of the result depends on every bit of `x`.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

RandomKv::RandomKv(const AttentionShape& shape, const AttentionKernels& kernels, const KvPool* pool)
    : shape_(shape), kernels_(kernels), pool_(pool) {
  const size_t count = kWindowStarts + 2 * kPageTokens * static_cast<size_t>(shape.head_dim);
  const size_t element_bytes = ElementBytes(shape.type);
  elements_.resize(count * element_bytes);
  for (size_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(Mix(i) >> 40) * 0x1p-23f - 1.0f;  // 24 random bits
    const Bf16 rounded = ToBf16(value);
    std::memcpy(elements_.data() + i * element_bytes,
                shape.type == ElementType::kF32 ? static_cast<const void*>(&value) : &rounded, element_bytes);
  }
}

void RandomKv::FillPage(TicketTeam* team, const KvSequence& sequence, uint32_t page_index, uint32_t tokens) {
  sequence_ = &sequence;
  page_index_ = page_index;
  tokens_ = std::min<uint32_t>(kPageTokens, tokens - page_index * kPageTokens);
  open_ = HasOpenPages(shape_) && (page_index + 1) * kPageTokens >= tokens;
  team->Run(&FillShare, this);
}

void RandomKv::FillShare(void* context, int thread, int threads) {
  const RandomKv& self = *static_cast<const RandomKv*>(context);
  const int layers = static_cast<int>(self.sequence_->stored_tokens.size());
  for (int i = thread; i < layers * self.shape_.kv_heads; i += threads) {
    self.FillHead(i / self.shape_.kv_heads, i % self.shape_.kv_heads);
  }
  EndStreams();
}

void RandomKv::FillHead(int layer, int kv_head) const {
  const uint64_t place =
      (uint64_t{page_index_} << 32) ^ (static_cast<uint64_t>(layer) << 16) ^ static_cast<uint64_t>(kv_head);
  const size_t head_bytes = static_cast<size_t>(shape_.head_dim) * ElementBytes(shape_.type);
  const size_t start = Mix(Mix(sequence_->id) ^ place) % kWindowStarts;
  AppendArgs args = {};
  const bool closed = !open_ || tokens_ == kPageTokens;
  if (closed) args.page = pool_->Address(layer, sequence_->pages[page_index_]);
  OpenPage open;
  if (open_) {
    open = pool_->OpenPageAt(layer, sequence_->open_pieces);
    args.open_page = &open;
  }
  args.kv_head = kv_head;
  args.first_slot = 0;
  args.tokens = static_cast<int>(tokens_);
  args.k = elements_.data() + start * ElementBytes(shape_.type);
  args.v = args.k + kPageTokens * head_bytes;
  args.row_stride_bytes = head_bytes;
  kernels_.append(shape_, args);
  if (open_ && closed) ClosePage(shape_, kv_head, open, args.page);
}

}  // namespace fastdecode
