#include "model/worker/worker_runner.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "device/cpu_operators.h"
#include "model/step/image_tokens.h"

namespace turbomind {

namespace {

// Space for lists of choices: a mask and some tokens each, and all tokens of this many sequences.
constexpr size_t kWordsOfChoice = 256;
constexpr size_t kCountedSequences = 4;
constexpr auto kPollInterval = std::chrono::milliseconds(50);  // how often a wait asks whether the worker still runs

// Of a sequence at most.
int blocks_of(const StepLimits& limits) {
  return (limits.context + limits.block_len - 1) / limits.block_len + 1;
}

ChannelShape shape_of(const WorkerOptions& options, const StepLimits& limits) {
  ChannelShape shape;
  shape.ranks = options.ranks;
  shape.vocab_size = options.vocab_size;
  shape.hidden_size = options.hidden_size;
  shape.rows = shape.spans = options.max_tokens;
  shape.embedding_width = options.images.width;
  const int state_pages = options.layers;  // at most: a page holds the state of a layer
  const size_t words_of_mask = static_cast<size_t>(options.vocab_size) / 32 + 1;
  shape.list_words = static_cast<int32_t>(static_cast<size_t>(limits.spans) * (words_of_mask + kWordsOfChoice) +
                                          kCountedSequences * static_cast<size_t>(limits.context));
  shape.blocks = limits.spans * (blocks_of(limits) + state_pages);
  return shape;
}

// The name of a file, which is not there, where the ranks of a start meet.
std::string rendezvous_path() {
  static std::atomic<int> starts{0};
  const std::string name = "lmdeploy-ranks-" + std::to_string(getpid()) + "-" + std::to_string(++starts);
  const std::filesystem::path file = std::filesystem::temp_directory_path() / name;
  std::filesystem::remove(file);
  return file.string();
}

}  // namespace

WorkerRunner::WorkerRunner(WorkerOptions options, const StepLimits& limits)
    : ModelRunner({.vocab_size = options.vocab_size, .hidden_size = options.hidden_size, .images = options.images}),
      options_(std::move(options)),
      limits_(limits),
      shape_(shape_of(options_, limits)),
      choices_(shape_) {
  traits_.adapters = this;
  traits_.processes = this;
  if (options_.ranks > kMaxRanks) {
    throw invalid_argument("tp must be at most " + std::to_string(kMaxRanks) + " with workers, got " +
                           std::to_string(options_.ranks));
  }
  start();
}

WorkerRunner::~WorkerRunner() {
  stop();
}

void WorkerRunner::start() {
  choices_ = WorkerChoices(shape_);
  steps_.clear();
  channel_ = std::make_unique<StepChannel>(shape_);
  const std::string rendezvous_file = rendezvous_path();
  for (int rank = 0; rank < options_.ranks; ++rank) {
    std::vector<std::string> command = options_.command;
    command.push_back("--rendezvous=" + rendezvous_file);
    command.push_back(std::to_string(rank));
    workers_.push_back(std::make_unique<WorkerProcess>(command, channel_->fd()));
  }
  const uint32_t load = channel_->given();
  try {
    wait(load);
  } catch (const Error&) {
    std::filesystem::remove(rendezvous_file);
    stop();
    throw;
  }
  std::filesystem::remove(rendezvous_file);
  const Json facts = Json::parse(channel_->text(0));
  facts_.token_bytes = static_cast<size_t>(facts.at("token_bytes").as_int());
  facts_.free_memory = static_cast<size_t>(facts.at("free_memory").as_int());
  facts_.window = static_cast<int>(facts.at("window").as_int());
  facts_.state_layers = static_cast<int>(facts.at("state_layers").as_int());
  facts_.state_bytes = static_cast<size_t>(facts.at("state_bytes").as_int());
  facts_.layers = AdaptableLayers(facts.at("layers"));
  facts_.sampling.clear();
  for (const Json& name : facts.at("sampling").as_array()) facts_.sampling.push_back(name.as_string());
  traits_.samples_on_device = !facts_.sampling.empty();
  end_of_watch_ = FileDescriptor(eventfd(0, EFD_CLOEXEC));
  watcher_ = std::thread([this] { watch(); });
}

void WorkerRunner::stop() {
  if (watcher_.joinable()) {
    const uint64_t one = 1;
    if (write(end_of_watch_.get(), &one, sizeof(one)) < 0) std::terminate();
    watcher_.join();
  }
  workers_.clear();
  channel_.reset();
}

void WorkerRunner::watch() {
  std::vector<pollfd> watched{{end_of_watch_.get(), POLLIN, 0}};
  for (const auto& worker : workers_) watched.push_back({worker->watched_fd(), POLLIN, 0});
  while (poll(watched.data(), watched.size(), -1) < 0) continue;
  if (watched[0].revents != 0) return;
  is_lost_ = true;
  const std::lock_guard lock(mu_);
  if (on_loss_) on_loss_();
}

void WorkerRunner::on_loss(std::function<void()> reported) {
  const std::lock_guard lock(mu_);
  on_loss_ = std::move(reported);
  if (on_loss_ && is_lost_) on_loss_();
}

void WorkerRunner::restart() {
  stop();
  is_lost_ = false;
  start();
  if (cache_.size.page_count > 0) order_cache();
  for (const auto& [slot, directory] : adapters_) order_adapter(OrderKind::kSetAdapter, slot, directory);
}

void WorkerRunner::lose(const std::string& reason) {
  is_lost_ = true;
  throw Error(ErrorCode::kUnavailable, reason);
}

void WorkerRunner::wait(uint32_t number, bool is_step) {
  const auto begin = std::chrono::steady_clock::now();
  for (int rank = 0; rank < options_.ranks; ++rank) {
    while (!channel_->wait_done(rank, number, kPollInterval)) {
      // One that failed or ended may be what the others wait for.
      for (int other = 0; other < options_.ranks; ++other) check(other, number);
      if (is_step && std::chrono::steady_clock::now() - begin > options_.step_timeout) {
        lose(name_of(rank) + " did not finish a step in " +
             std::to_string(static_cast<int>(options_.step_timeout.count())) + " s");
      }
    }
    check(rank, number);
  }
}

void WorkerRunner::check(int rank, uint32_t number) {
  const std::string end = workers_[static_cast<size_t>(rank)]->how_it_ended();
  const bool is_done = channel_->wait_done(rank, number, {});
  if (is_done && channel_->has_failed(rank, number)) {
    const OrderKind kind = channel_->order(number).kind;
    const std::string reason = channel_->text(rank);
    if (kind == OrderKind::kLoad || kind == OrderKind::kAllocate) throw invalid_argument(reason);
    lose(name_of(rank) + " failed: " + reason);
  }
  if (!is_done && !end.empty()) lose(name_of(rank) + " " + end);
}

std::string WorkerRunner::name_of(int rank) const {
  return options_.ranks > 1 ? "worker " + std::to_string(rank) : "the worker";
}

// A block of all layers with keys and values is one piece, so that it takes one page.
std::vector<CacheGroup> WorkerRunner::cache_groups(const StepLimits& limits) const {
  std::vector<CacheGroup> groups;
  if (facts_.token_bytes > 0) {
    CacheGroup& group = groups.emplace_back();
    const bool has_window = facts_.window > 0 && facts_.window < limits.context;
    group.kind = has_window ? MemoryKind::kWindow : MemoryKind::kPaged;
    group.window = has_window ? facts_.window : 0;
    group.block_len = limits.block_len;
    group.pieces = 1;
    group.piece_bytes = facts_.token_bytes * static_cast<size_t>(limits.block_len);
  }
  if (facts_.state_layers > 0) {
    CacheGroup& group = groups.emplace_back();
    group.kind = MemoryKind::kState;
    group.pieces = facts_.state_layers;
    group.piece_bytes = facts_.state_bytes;
  }
  return groups;
}

size_t WorkerRunner::free_cache_memory() {
  return facts_.free_memory != 0 ? facts_.free_memory : available_memory() / static_cast<size_t>(options_.ranks);
}

std::byte* WorkerRunner::allocate_cache(const CacheShare& share) {
  cache_ = share;
  order_cache();
  return nullptr;
}

Order& WorkerRunner::new_order(OrderKind kind) {
  Order& order = channel_->order();
  order = {};
  order.kind = kind;
  order.area = area_;
  return order;
}

void WorkerRunner::order_cache() {
  Order& order = new_order(OrderKind::kAllocate);
  order.page_bytes = static_cast<int64_t>(cache_.plan.page_bytes);
  order.block_count = cache_.size.page_count;
  order.block_len = cache_.plan.block_len;
  order.host_block_count = cache_.size.host_page_count;
  order.sequences = limits_.spans;
  order.sequence_blocks = blocks_of(limits_);
  wait(channel_->give());
}

std::unique_ptr<AdapterFile> WorkerRunner::open_adapter(const std::string& directory) const {
  if (directory.size() > kMaxPathLen) throw invalid_argument("its path is too long");
  return facts_.layers.open(directory);
}

void WorkerRunner::set_adapter(int slot, std::unique_ptr<Adapter> adapter) {
  adapters_[slot] = directory_of(*adapter);
  order_adapter(OrderKind::kSetAdapter, slot, adapters_[slot]);
}

void WorkerRunner::drop_adapter(int slot) {
  adapters_.erase(slot);
  order_adapter(OrderKind::kDropAdapter, slot, "");
}

void WorkerRunner::order_adapter(OrderKind kind, int slot, const std::string& directory) {
  Order& order = new_order(kind);
  order.slot = slot;
  order.directory_bytes = static_cast<int32_t>(directory.size());
  std::copy(directory.begin(), directory.end(), order.directory);
  wait(channel_->give());
}

void WorkerRunner::move_pages(const std::vector<PageMove>& moves) {
  if (is_lost_) lose("a worker has ended");
  const auto at_once = static_cast<size_t>(shape_.blocks / 2);
  for (size_t first = 0; first < moves.size(); first += at_once) {
    const size_t count = std::min(at_once, moves.size() - first);
    Order& order = new_order(OrderKind::kMoveBlocks);
    order.moves = static_cast<int32_t>(count);
    std::memcpy(channel_->blocks(order.area), moves.data() + first, count * sizeof(PageMove));
    wait(channel_->give());
  }
}

void WorkerRunner::launch(const StepInput& input) {
  if (is_lost_) lose("a worker has ended");
  Order& order = new_order(OrderKind::kStep);
  order.rows = static_cast<int32_t>(input.tokens.size());
  order.spans = static_cast<int32_t>(input.spans.size());
  choices_.begin(input, *channel_, order);
  ChannelSpan* to = channel_->spans(area_);
  int32_t* blocks = channel_->blocks(area_);
  int32_t used = 0;
  for (const StepSpan& span : input.spans) {
    const int logit_rows = span.logit_rows();
    ChannelSpan& sent = *to++;
    sent = {span.first_token,        span.count,  span.first_position, span.prompt_len, used, 0,
            span.count - logit_rows, span.adapter};
    order.logit_rows += logit_rows;
    for (const CacheGroup& group : cache_.plan.groups) {
      const bool is_state = group.kind == MemoryKind::kState;
      const int needed = is_state ? group.pages : group.blocks_for(span.first_position + span.count);
      if (used + needed > shape_.blocks) throw internal_error("a step has more blocks than fit into shared memory");
      for (int i = 0; i < needed; ++i) {
        const auto table = static_cast<size_t>(group.first_table + (is_state ? i : 0));
        blocks[used + i] = (*span.tables)[table][is_state ? 0 : static_cast<size_t>(i)];
      }
      used += needed;
      if (!is_state) sent.block_count = needed;
    }
  }
  send_images(input, order);
  const int choices = order.choices;
  steps_.push_back({channel_->give(), area_, choices});
  area_ = (area_ + 1) % kAreas;
}

void WorkerRunner::send_images(const StepInput& input, Order& order) {
  if (options_.images.width == 0) return;
  const std::vector<EmbeddedToken> sources = embedded_tokens(input);
  order.embedded = static_cast<int32_t>(sources.size());
  int32_t* row = channel_->embedded_tokens(order.area);
  float* to = channel_->embeddings(order.area);
  for (const EmbeddedToken& source : sources) {
    *row++ = source.row;
    source.rows->read(source.source, 0, options_.images.width, to);
    to += options_.images.width;
  }
  if (!options_.images.has_grid) return;
  order.has_grid = 1;
  for (const StepSpan& span : input.spans)
    fill_grid_positions(span.embeddings, span.first_position, span.count,
                        channel_->grid_positions(order.area) + 3 * span.first_token);
}

StepOutput WorkerRunner::collect() {
  const StepInFlight step = steps_.front();
  wait(step.number, true);
  steps_.pop_front();
  StepOutput output;
  output.chosen = choices_.collect(*channel_, step.area, step.choices);
  output.logits = channel_->logits();
  output.hidden = channel_->hidden();
  return output;
}

}  // namespace turbomind
