// FAST PATH (docs/FAST_PATH.md)
#include "engine/rpart/sequence_table.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "numa/check.h"

namespace fastdecode {

namespace {

constexpr uint32_t kReservedSequences = 1024;  // of the hash map up-front; it only grows on the control path

size_t PagesOf(uint32_t tokens) { return (size_t{tokens} + kPageTokens - 1) / kPageTokens; }

}  // namespace

uint32_t KvSequence::StoredTokensMin() const { return *std::min_element(stored_tokens.begin(), stored_tokens.end()); }
uint32_t KvSequence::StoredTokensMax() const { return *std::max_element(stored_tokens.begin(), stored_tokens.end()); }

SequenceTable::SequenceTable(PageAccount* account, int layers, uint32_t max_context, uint32_t sequences_max)
    : account_(account),
      counts_(account->pool().shape()),
      layers_(layers),
      max_context_(max_context),
      sequences_max_(sequences_max) {
  by_id_.reserve(std::min(sequences_max, kReservedSequences));  // at start
}

SequenceTable::~SequenceTable() { ReleaseAll(); }

KvSequence* SequenceTable::Find(uint64_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second.get();
}

KvSequence* SequenceTable::FindOrCreate(uint64_t id) {
  if (KvSequence* sequence = Find(id)) return sequence;
  if (by_id_.size() >= sequences_max_) return nullptr;
  std::unique_ptr<KvSequence> sequence;
  if (spare_.empty()) {
    sequence = std::make_unique<KvSequence>();  // once a sequence
    // So that growing never allocates: neither the context nor the account allows more.
    sequence->pages.reserve(std::min<size_t>(PagesOf(max_context_), account_->granted()));  // once a sequence
  } else {
    sequence = std::move(spare_.back());
    spare_.pop_back();
  }
  sequence->id = id;
  sequence->reservation = 0;
  sequence->stored_tokens.assign(static_cast<size_t>(layers_), 0);  // once a sequence
  return (by_id_[id] = std::move(sequence)).get();
}

void SequenceTable::MakeSpares() {
  FD_CHECK(by_id_.empty(), "there are sequences already");
  by_id_.reserve(sequences_max_);  // at start
  spare_.reserve(sequences_max_);  // at start
  for (uint64_t id = 0; id < sequences_max_; ++id) FindOrCreate(id);
  ReleaseAll();
}

GrowOutcome SequenceTable::Grow(KvSequence* sequence, uint32_t first, uint32_t tokens) {
  FD_CHECK(tokens > 0 && first <= sequence->StoredTokensMax() && tokens <= max_context_ - first,
           "growth beyond its bounds");
  const uint32_t stored_min = sequence->StoredTokensMin(), stored_max = sequence->StoredTokensMax();
  const uint32_t end = std::max(first + tokens, stored_max);
  uint32_t pieces = std::max(counts_.PiecesOfStep(std::min(first, stored_min), end), counts_.Pieces(first + tokens));
  if (stored_min != stored_max) pieces = std::max(pieces, sequence->pieces);
  const size_t first_page = first / kPageTokens;
  const size_t pages_before = sequence->pages.size();
  const size_t pages_after = std::max<size_t>(pages_before, counts_.Closed(end));
  size_t needed = pages_after + pieces;
  for (size_t i = first_page; i < pages_before; ++i) needed += account_->references(sequence->pages[i]) > 1 ? 1 : 0;
  if (needed > account_->free() + pages_before + sequence->pieces) return GrowOutcome::kNoPage;

  ReturnPieces(sequence, pieces);
  TakePieces(sequence, pieces);
  for (size_t i = first_page; i < pages_before; ++i) {
    PageId& page = sequence->pages[i];
    if (account_->shared(page)) page = account_->Unshare(page);
  }
  while (sequence->pages.size() < pages_after) {
    const PageId last = sequence->pages.empty() ? kNoPage : sequence->pages.back();
    sequence->pages.push_back(account_->TakeBehind(last, static_cast<uint32_t>(pages_after)));  // reserved
  }
  return GrowOutcome::kOk;
}

absl::Status SequenceTable::Truncate(uint64_t id, uint32_t tokens) {
  KvSequence* const sequence = Find(id);
  if (sequence == nullptr) return absl::NotFoundError(absl::StrFormat("truncate: no sequence %d here", id));
  if (tokens > sequence->StoredTokensMax()) {
    return absl::InvalidArgumentError(absl::StrFormat("truncate: sequence %d to %d tokens, but only %d are stored", id,
                                                      tokens, sequence->StoredTokensMax()));
  }
  // A closed page that becomes the open one is read before it is returned.
  const size_t pages = PagesOf(tokens);
  const uint32_t stored_min = sequence->StoredTokensMin();
  uint32_t pieces = counts_.PiecesOfCut(tokens);
  // Layers in between may need those that are there.
  if (stored_min < tokens) pieces = std::max(pieces, sequence->pieces);
  if (pieces > sequence->pieces + account_->free() + PagesAlone(*sequence, pages)) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("truncate: sequence %d to %d tokens, whose open page needs more than the %d free pages", id,
                        tokens, account_->free()));
  }
  ReturnPagesFrom(sequence, pages);
  TakePieces(sequence, pieces);
  if (counts_.open_pages()) ReopenFrom(*sequence, tokens, sequence);
  for (uint32_t& stored : sequence->stored_tokens) stored = std::min(stored, tokens);
  ReturnPagesFrom(sequence, counts_.Closed(tokens));
  ReturnPieces(sequence, pieces);
  ++changes_;
  return absl::OkStatus();
}

absl::Status SequenceTable::Fork(uint64_t id, uint32_t tokens, uint64_t new_id) {
  const KvSequence* const sequence = Find(id);
  if (sequence == nullptr) return absl::NotFoundError(absl::StrFormat("fork: no sequence %d here", id));
  if (Find(new_id) != nullptr) return absl::AlreadyExistsError(absl::StrFormat("fork: sequence %d exists", new_id));
  if (tokens > sequence->StoredTokensMin()) {
    return absl::InvalidArgumentError(absl::StrFormat("fork: %d tokens of sequence %d, but only %d are stored", tokens,
                                                      id, sequence->StoredTokensMin()));
  }
  const uint32_t pieces = counts_.PiecesOfCut(tokens);
  if (account_->free() < pieces) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "fork: %d pages for the open page of sequence %d, but only %d are free", pieces, new_id, account_->free()));
  }
  KvSequence* const fork = FindOrCreate(new_id);
  if (fork == nullptr) {
    return absl::ResourceExhaustedError(absl::StrFormat("fork: there are %d sequences already", sequences_max_));
  }
  // What is in an open page is copied.
  const auto shared_pages = static_cast<ptrdiff_t>(counts_.Closed(tokens));
  fork->pages.assign(sequence->pages.begin(), sequence->pages.begin() + shared_pages);  // once a sequence
  for (const PageId page : fork->pages) account_->AddReference(page);
  TakePieces(fork, pieces);
  if (counts_.open_pages()) ReopenFrom(*sequence, tokens, fork);
  fork->stored_tokens.assign(static_cast<size_t>(layers_), tokens);  // once a sequence
  ++changes_;
  return absl::OkStatus();
}

void SequenceTable::MoveTo(SequenceTable* to, uint64_t id, uint64_t new_id) {
  KvSequence* const sequence = Find(id);
  FD_CHECK(sequence != nullptr && to != this && to->layers_ == layers_, "a sequence cannot be moved so");
  FD_CHECK(sequence->StoredTokensMax() <= to->max_context_ && to->Find(new_id) == nullptr, "no place for a sequence");
  KvSequence* const moved = to->FindOrCreate(new_id);
  FD_CHECK(moved != nullptr, "no room for one more sequence");
  moved->pages.assign(sequence->pages.begin(), sequence->pages.end());  // once a sequence
  moved->stored_tokens = sequence->stored_tokens;
  for (const PageId page : sequence->pages) account_->MoveReference(page, to->account_);
  sequence->pages.clear();
  for (uint32_t i = 0; i < sequence->pieces; ++i) account_->MoveReference(sequence->open_pieces[i], to->account_);
  std::swap(sequence->open_pieces, moved->open_pieces);
  std::swap(sequence->pieces, moved->pieces);
  Release(id);
}

void SequenceTable::Release(uint64_t id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return;
  ReturnPagesFrom(found->second.get(), 0);
  ReturnPieces(found->second.get(), 0);
  spare_.push_back(std::move(found->second));  // once a sequence
  by_id_.erase(found);
  ++changes_;
}

void SequenceTable::ReleaseAll() {
  while (!by_id_.empty()) Release(by_id_.begin()->first);
}

void SequenceTable::TakePieces(KvSequence* sequence, uint32_t count) {
  while (sequence->pieces < count) sequence->open_pieces[sequence->pieces++] = account_->Take();
}

void SequenceTable::ReturnPieces(KvSequence* sequence, uint32_t count) {
  while (sequence->pieces > count) {
    account_->Return(std::exchange(sequence->open_pieces[--sequence->pieces], kNoPage));
  }
}

// Makes the page that is the last one of `tokens` tokens the open page of `to`, layer by layer, unless it is that, or
// full.
void SequenceTable::ReopenFrom(const KvSequence& from, uint32_t tokens, KvSequence* to) const {
  if (tokens % kPageTokens == 0) return;
  const KvPool& pool = account_->pool();
  const uint32_t page = (tokens - 1) / kPageTokens, pieces = counts_.Pieces(tokens);
  const int page_tokens = static_cast<int>(tokens - page * kPageTokens);
  for (int layer = 0; layer < layers_; ++layer) {
    if (from.stored_tokens[static_cast<size_t>(layer)] < tokens) continue;
    const OpenPage of_to = pool.OpenPageAt(layer, to->open_pieces);
    if (from.IsOpen(layer, page)) {
      const OpenPage of_from = pool.OpenPageAt(layer, from.open_pieces);
      for (uint32_t i = 0; i < pieces && to != &from; ++i) {
        std::memcpy(of_to.pieces[i], of_from.pieces[i], pool.page_stride_bytes());
      }
    } else {
      for (int head = 0; head < pool.shape().kv_heads; ++head) {
        ReopenPage(pool.shape(), head, pool.Address(layer, from.pages[page]), page_tokens, of_to);
      }
    }
  }
}

// Of the pages from there on those that come free when they are returned.
uint32_t SequenceTable::PagesAlone(const KvSequence& sequence, size_t first_page) const {
  uint32_t alone = 0;
  for (size_t i = first_page; i < sequence.pages.size(); ++i) alone += account_->references(sequence.pages[i]) == 1;
  return alone;
}

void SequenceTable::ReturnPagesFrom(KvSequence* sequence, size_t first_page) {
  for (size_t i = first_page; i < sequence->pages.size(); ++i) account_->Return(sequence->pages[i]);
  if (first_page < sequence->pages.size()) sequence->pages.resize(first_page);  // it shrinks
}

}  // namespace fastdecode
