#include "tests/engine/pipeline/home_model.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "tests/engine/pipeline/fake_model.h"

namespace fastdecode {

namespace {

template <class T>
bool Read(std::span<const std::byte> message, T* out) {
  if (message.size() != sizeof(T)) return false;
  std::memcpy(out, message.data(), sizeof(T));
  return true;
}

uint32_t PiecesOf(uint32_t tokens, uint32_t tokens_of_a_piece) {
  return (tokens + tokens_of_a_piece - 1) / tokens_of_a_piece;
}

}  // namespace

HomeModel::HomeModel(const RPartShape& shape, uint32_t pages)
    : shape_(shape), pages_total_(pages), users_(pages, 0), batches_(shape.micro_batches) {
  for (MicroBatch& batch : batches_) batch.next_layer = shape.layers;
}

std::vector<uint64_t> HomeModel::SequencesOf(uint32_t micro_batch) const {
  std::vector<uint64_t> ids;
  for (const RosterEntry& entry : batches_[micro_batch].entries) ids.push_back(entry.sequence);
  return ids;
}

uint32_t HomeModel::PromptTokensOf(uint64_t sequence) const {
  const auto found = sequences_.find(sequence);
  return found == sequences_.end() ? 0 : found->second->prompt_tokens;
}

std::string HomeModel::Apply(std::span<const std::byte> message) {
  uint32_t kind = 0;
  if (message.size() < sizeof(kind)) return "a control message without a kind";
  std::memcpy(&kind, message.data(), sizeof(kind));
  const ControlKind control = static_cast<ControlKind>(kind);
  idle_ = control == ControlKind::kIdle;
  if (left_ && !idle_) return absl::StrFormat("control message of kind %d: the engine has left", kind);
  SequenceMessage body;
  switch (control) {
    case ControlKind::kRoster:
      return ApplyRoster(message);
    case ControlKind::kRelease: {
      if (!Read(message, &body)) return "release: wrong size";
      const auto found = sequences_.find(body.sequence);
      // A home allows it; the pipeline has no reason to.
      if (found == sequences_.end()) return absl::StrFormat("release: sequence %d is not here", body.sequence);
      ReturnPages(found->second.get());
      spare_.push_back(std::move(found->second));
      sequences_.erase(found);
      return "";
    }
    case ControlKind::kFork: {
      ForkMessage fork;
      return Read(message, &fork) ? Fork(fork) : "fork: wrong size";
    }
    case ControlKind::kTruncate:
      return Read(message, &body) ? Truncate(body) : "truncate: wrong size";
    case ControlKind::kFill:
      return Read(message, &body) ? Fill(body) : "fill: wrong size";
    case ControlKind::kIdle:
      return sequences_.empty() || expects_kept_ ? "" : "idle: but there are sequences here";
    case ControlKind::kLeft:
      left_ = true;
      return sequences_.empty() ? "" : "left: but there are sequences here";
    default:
      return absl::StrFormat("control message of kind %d", kind);
  }
}

HomeModel::KvSequence* HomeModel::FindOrCreate(uint64_t id) {
  std::unique_ptr<KvSequence>& sequence = sequences_[id];
  if (sequence != nullptr) return sequence.get();
  if (spare_.empty()) {
    sequence = std::make_unique<KvSequence>();
    sequence->history.resize(shape_.layers);
    for (auto& history : sequence->history) history.reserve(shape_.max_context);
  } else {
    sequence = std::move(spare_.back());
    spare_.pop_back();
    for (auto& history : sequence->history) history.clear();
    sequence->prompt_tokens = 0;
  }
  return sequence.get();
}

std::string HomeModel::ApplyRoster(std::span<const std::byte> message) {
  RosterMessage header;
  if (message.size() < sizeof(header)) return "roster: too short";
  std::memcpy(&header, message.data(), sizeof(header));
  if (header.micro_batch >= batches_.size()) return "roster: of no micro-batch";
  if (message.size() != sizeof(header) + header.entries * sizeof(RosterEntry)) return "roster: wrong size";
  MicroBatch& batch = batches_[header.micro_batch];
  if (batch.next_layer != shape_.layers) return "roster: in the middle of a step";
  if (header.version != batch.version + 1) return "roster: versions do not follow each other";
  batch.entries.resize(header.entries);
  if (header.entries > 0) {
    std::memcpy(static_cast<void*>(batch.entries.data()), message.data() + sizeof(header),
                message.size() - sizeof(header));
  }
  batch.version = header.version;
  batch.rows = 0;
  std::set<uint64_t> seen;
  for (const RosterEntry& entry : batch.entries) {
    if (!seen.insert(entry.sequence).second) return "roster: a sequence twice";
    for (const MicroBatch& other : batches_) {
      if (&other == &batch || other.next_layer == shape_.layers) continue;
      for (const RosterEntry& there : other.entries) {
        if (there.sequence == entry.sequence) return "roster: the sequence is in another micro-batch's step";
      }
    }
    if (entry.query_tokens == 0) return "roster: an entry without rows";
    if (entry.first_position + entry.query_tokens > shape_.max_context) return "roster: beyond the context";
    batch.rows += entry.query_tokens;
    const uint32_t end = entry.first_position + entry.query_tokens;
    if (entry.first_position < entry.prompt_tokens && end > entry.prompt_tokens) {
      return "roster: rows of a prompt and others in one entry";
    }
    uint32_t& prompt_tokens = FindOrCreate(entry.sequence)->prompt_tokens;
    if (entry.prompt_tokens == 0) return "roster: a sequence without a prompt";
    if (prompt_tokens != 0 && prompt_tokens != entry.prompt_tokens) return "roster: another prompt";
    prompt_tokens = entry.prompt_tokens;
  }
  if (batch.rows > shape_.max_rows) return "roster: too many rows";
  return "";
}

// For tokens [first, end). With int4 the last 1 to 32 tokens are in pages of eight, from when they come until the step
// of the first token behind them, or, where that step has some of them, until the step after it.
bool HomeModel::TakePages(KvSequence* sequence, uint32_t first, uint32_t end) {
  const bool open_pages = HasOpenPages(shape_.attention());
  uint32_t pages = PiecesOf(end, kPageTokens), pieces = 0;
  if (open_pages) {
    const uint32_t last = end % kPageTokens == 0 ? kPageTokens : end % kPageTokens;
    pages = end / kPageTokens;
    pieces = std::max(PiecesOf(last, 8), PiecesOf(first % kPageTokens, 8));
  }
  const auto had = static_cast<uint32_t>(sequence->pages.size());
  pages = std::max(pages, had);
  // The only page that is written to and may be shared is the one that was the last.
  const uint32_t written = first / kPageTokens;
  const bool copies = written < had && users_[sequence->pages[written]] > 1;
  const uint32_t before = had + sequence->pieces, after = pages + copies + pieces;
  if (after > before && after - before > pages_total_ - pages_used_) return false;
  pages_used_ += pieces;
  pages_used_ -= sequence->pieces;
  sequence->pieces = pieces;
  if (copies) {
    --users_[sequence->pages[written]];
    sequence->pages[written] = TakePage();
  }
  while (sequence->pages.size() < pages) sequence->pages.push_back(TakePage());
  return true;
}

uint32_t HomeModel::TakePage() {
  const auto page = static_cast<uint32_t>(std::find(users_.begin(), users_.end(), 0u) - users_.begin());
  users_[page] = 1;
  ++pages_used_;
  return page;
}

void HomeModel::ReturnPages(KvSequence* sequence) {
  for (const uint32_t page : sequence->pages) pages_used_ -= --users_[page] == 0;
  pages_used_ -= sequence->pieces;
  sequence->pages.clear();
  sequence->pieces = 0;
}

std::string HomeModel::Fork(const ForkMessage& message) {
  const auto found = sequences_.find(message.sequence);
  if (found == sequences_.end()) return absl::StrFormat("fork: sequence %d is not here", message.sequence);
  if (sequences_.count(message.new_sequence) != 0) return absl::StrFormat("fork: there is a %d", message.new_sequence);
  const KvSequence& from = *found->second;
  for (const std::vector<uint64_t>& history : from.history) {
    if (history.size() < message.tokens) return "fork: of more tokens than are stored";
  }
  const bool open_pages = HasOpenPages(shape_.attention());
  const uint32_t pieces = PiecesOfCut(message.tokens);
  if (pieces > pages_total_ - pages_used_) return "fork: no page left";
  KvSequence* const fork = FindOrCreate(message.new_sequence);
  const uint32_t shared = open_pages ? message.tokens / kPageTokens : PiecesOf(message.tokens, kPageTokens);
  for (uint32_t i = 0; i < shared; ++i) {
    fork->pages.push_back(from.pages[i]);
    ++users_[from.pages[i]];
  }
  fork->pieces = pieces;
  pages_used_ += pieces;
  for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
    const std::vector<uint64_t>& history = from.history[layer];
    fork->history[layer].assign(history.begin(), history.begin() + message.tokens);
  }
  return "";
}

// Behind a full page nothing of it is open.
uint32_t HomeModel::PiecesOfCut(uint32_t tokens) const {
  return HasOpenPages(shape_.attention()) ? PiecesOf(tokens % kPageTokens, 8) : 0;
}

// A prefix of full pages is all that an engine keeps.
std::string HomeModel::Truncate(const SequenceMessage& message) {
  const auto found = sequences_.find(message.sequence);
  if (found == sequences_.end()) return absl::StrFormat("truncate: sequence %d is not here", message.sequence);
  if (!expects_kept_ || message.tokens == 0 || message.tokens % kPageTokens != 0) return "truncate: not to full pages";
  for (const MicroBatch& batch : batches_) {
    if (batch.next_layer == shape_.layers) continue;
    for (const RosterEntry& entry : batch.entries) {
      if (entry.sequence == message.sequence) return "truncate: the sequence is in a step";
    }
  }
  KvSequence& sequence = *found->second;
  for (std::vector<uint64_t>& history : sequence.history) {
    if (history.size() < message.tokens) return "truncate: to more tokens than are stored";
    history.resize(message.tokens);
  }
  pages_used_ -= std::exchange(sequence.pieces, 0);
  for (size_t i = message.tokens / kPageTokens; i < sequence.pages.size(); ++i) {
    pages_used_ -= --users_[sequence.pages[i]] == 0;
  }
  sequence.pages.resize(message.tokens / kPageTokens);
  return "";
}

std::string HomeModel::Fill(const SequenceMessage& message) {
  KvSequence* sequence = FindOrCreate(message.sequence);
  if (!sequence->history[0].empty()) return "fill: there are tokens already";
  if (!TakePages(sequence, 0, message.tokens)) return "fill: no page left";
  for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
    uint64_t history = 0;
    for (uint32_t i = 0; i < message.tokens; ++i) {
      history = AppendKv(history, FillValue(CellKind::kK, i, layer), FillValue(CellKind::kV, i, layer));
      sequence->history[layer].push_back(history);
    }
  }
  return "";
}

bool HomeModel::Awaits(const HopHeader& hop) const {
  return hop.micro_batch < batches_.size() && hop.roster_version > batches_[hop.micro_batch].version;
}

HopHeader HomeModel::HopOf(uint32_t micro_batch, uint32_t layer, uint32_t first_position) const {
  const MicroBatch& batch = batches_[micro_batch];
  const RosterEntry& first = batch.entries.front();
  HopHeader hop;
  hop.step = first.step_from + first_position - first.first_position;
  hop.layer = static_cast<uint16_t>(layer);
  hop.micro_batch = static_cast<uint8_t>(micro_batch);
  hop.roster_version = batch.version;
  return hop;
}

std::string HomeModel::CheckHop(const MicroBatch& batch, const HopHeader& hop) const {
  if (hop.roster_version != batch.version) return "hop: its roster was replaced";
  if (hop.rows == 0 || hop.rows != batch.rows) return "hop: rows are not the roster's";
  if (hop.payload_bytes != hop.rows * shape_.hop_row_bytes()) return "hop: payload_bytes";
  if (hop.layer == 0 && hop.step <= batch.step) return "hop: step does not follow";
  if (hop.layer == 0 && batch.next_layer != shape_.layers) return "hop: the last step was not finished";
  if (hop.layer != 0 && (hop.step != batch.step || hop.layer != batch.next_layer)) return "hop: layer does not follow";
  return "";
}

std::string HomeModel::RunHop(const HopHeader& hop, const std::byte* rows, std::byte* o, ReplyHeader* reply) {
  MicroBatch& batch = batches_[hop.micro_batch];
  idle_ = false;
  if (std::string wrong = CheckHop(batch, hop); !wrong.empty()) return wrong;
  if (hop.layer == 0) batch.bad.assign(batch.entries.size(), false);
  batch.step = hop.step;
  batch.next_layer = hop.layer + 1u;
  *reply = ReplyHeader{};
  reply->step = hop.step;
  reply->layer = hop.layer;
  reply->micro_batch = hop.micro_batch;
  reply->work_ns = work_ns_;
  reply->payload_bytes = static_cast<uint32_t>(hop.rows * shape_.reply_row_bytes());
  uint32_t row = 0;
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    const RosterEntry& entry = batch.entries[i];
    if (hop.step < entry.step_from) return "hop: step before its entry";
    if (hop.step > entry.step_from && entry.query_tokens > 1) return "hop: an entry of several rows held for one step";
    const uint32_t first = entry.first_position + static_cast<uint32_t>(hop.step - entry.step_from);
    const auto found = sequences_.find(entry.sequence);
    if (found == sequences_.end()) return "hop: a sequence that was released";
    KvSequence& sequence = *found->second;
    if (hop.layer == 0 && !TakePages(&sequence, first, first + entry.query_tokens)) {
      return absl::StrFormat("hop: no page left for sequence %d (%d of %d are used)", entry.sequence, pages_used_,
                             pages_total_);
    }
    if (entry.sequence == spoiled_ && reply->status == HopStatus::kOk && !batch.bad[i]) {
      spoiled_ = 0;
      batch.bad[i] = true;
      reply->status = HopStatus::kBadRow;
      reply->failing_row = row;
    }
    for (uint32_t r = 0; r < entry.query_tokens; ++r, ++row) {
      std::byte* const out = o + row * shape_.reply_row_bytes();
      if (batch.bad[i]) {
        std::memset(out, 0, shape_.reply_row_bytes());
        continue;
      }
      std::string wrong = RunRow(sequence, first + r, hop.layer, rows + row * shape_.hop_row_bytes(), out);
      if (!wrong.empty()) return absl::StrFormat("hop: sequence %d, position %d: %s", entry.sequence, first + r, wrong);
    }
  }
  return "";
}

std::string HomeModel::RunRow(KvSequence& sequence, uint32_t position, uint32_t layer, const std::byte* row,
                              std::byte* o) {
  FakeCell cells[3];
  std::memcpy(static_cast<void*>(cells), row, sizeof(cells));
  if (dead_rows_ > 0 && position + 1 >= sequence.history[layer].size()) {
    // Whatever it is, only that there is one counts.
    bool sound = true;
    for (int i = 0; i < 3; ++i) sound &= cells[i].Sound() && cells[i].layer == layer && cells[i].position == position;
    if (!sound) {
      sequence.history[layer].resize(position + 1);
      --dead_rows_;
      return "";
    }
  }
  for (int i = 0; i < 3; ++i) {
    if (!cells[i].Sound() || cells[i].kind != static_cast<CellKind>(i + 1)) return "q, k or v is stale or torn";
    if (cells[i].position != position || cells[i].layer != layer || cells[i].token != cells[0].token) {
      return "q, k or v of another row";
    }
  }
  std::vector<uint64_t>& history = sequence.history[layer];
  if (position > history.size()) return "tokens before it are missing";
  // A home skips it; the pipeline replays nothing and has no reason to compute a token twice.
  if (position < history.size()) return "it is stored already";
  history.push_back(AppendKv(position == 0 ? 0 : history[position - 1], cells[1].value, cells[2].value));
  const FakeCell out =
      FakeCell::Make(CellKind::kO, cells[0].token, position, layer, Attend(cells[0].value, history[position]));
  std::memcpy(o, &out, sizeof(out));
  return "";
}

}  // namespace fastdecode
