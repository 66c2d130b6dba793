#include "python/bindings.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <chrono>
#include <vector>

#include "base/error.h"
#include "model/worker/step_channel.h"
#include "weights/adapter_checkpoint.h"

namespace py = pybind11;

namespace turbomind {

namespace {

constexpr int kSpanFields = sizeof(ChannelSpan) / sizeof(int32_t);

// NumPy's type of ChannelChoice.
py::dtype choice_dtype() {
  py::list names;
  py::list formats;
  py::list offsets;
  ChannelChoice choice;
  const auto* begin = reinterpret_cast<const std::byte*>(&choice);
  visit_fields(choice, [&]<class T>(const char* name, T& field) {
    names.append(name);
    formats.append(py::dtype::of<T>());
    offsets.append(reinterpret_cast<const std::byte*>(&field) - begin);
  });
  return py::dtype(names, formats, offsets, sizeof(ChannelChoice));
}

// One end of a StepChannel, as a rank sees it.
class WorkerChannel {
 public:
  WorkerChannel(int fd, int rank) : channel_(fd), rank_(rank) {
    if (rank < 0 || rank >= channel_.shape().ranks) throw invalid_argument("there is no rank " + std::to_string(rank));
  }

  // The next order; None: none came in that time, or before a signal.
  py::object wait(double seconds) {
    bool has_order = false;
    {
      const py::gil_scoped_release unlocked;
      const auto timeout = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
      has_order = channel_.wait_order(last_, timeout);
    }
    if (!has_order) return py::none();
    ++last_;
    Order order = channel_.order(last_);
    return py::make_tuple(last_, std::move(order));
  }

  void finish(uint32_t number, bool has_failed, const std::string& text) {
    channel_.finish(rank_, number, has_failed, text);
  }

  // Views of the shared memory; `owner` keeps it.
  static py::object area(const py::object& owner, int index) {
    const StepChannel& channel = of(owner);
    if (index < 0 || index >= kAreas) throw invalid_argument("there is no area " + std::to_string(index));
    const ChannelShape& shape = channel.shape();
    const int seeing_tokens = shape.embedding_width > 0 ? shape.rows : 0;
    const auto view = [&owner]<class T>(T* data, std::vector<py::ssize_t> sizes) {
      return py::array_t<T>(std::move(sizes), data, owner);
    };
    py::dict views;
    views["tokens"] = view(channel.tokens(index), {shape.rows});
    views["spans"] = view(reinterpret_cast<int32_t*>(channel.spans(index)), {shape.spans, kSpanFields});
    views["blocks"] = view(channel.blocks(index), {shape.blocks});
    views["embedded_tokens"] = view(channel.embedded_tokens(index), {seeing_tokens});
    views["embeddings"] = view(channel.embeddings(index), {seeing_tokens, shape.embedding_width});
    views["grid_positions"] = view(channel.grid_positions(index), {seeing_tokens, 3});
    views["choices"] = py::array(choice_dtype(), {shape.spans}, {}, channel.choices(index), owner);
    views["lists"] = view(channel.lists(index), {shape.list_words});
    views["chosen"] = view(channel.chosen(index), {shape.spans});
    views["logprobs"] = view(channel.logprobs(index), {shape.spans});
    views["top_tokens"] = view(channel.top_tokens(index), {shape.spans, kMaxChoiceLogprobs});
    views["top_logprobs"] = view(channel.top_logprobs(index), {shape.spans, kMaxChoiceLogprobs});
    return py::module_::import("types").attr("SimpleNamespace")(**views);
  }
  static py::array logits(const py::object& owner) {
    const StepChannel& channel = of(owner);
    return py::array_t<float>({channel.shape().rows, channel.shape().vocab_size}, channel.logits(), owner);
  }
  static py::array hidden(const py::object& owner) {
    const StepChannel& channel = of(owner);
    return py::array_t<float>({channel.shape().rows, channel.shape().hidden_size}, channel.hidden(), owner);
  }

 private:
  static const StepChannel& of(const py::object& owner) { return owner.cast<const WorkerChannel&>().channel_; }

  StepChannel channel_;
  int rank_;
  uint32_t last_ = 0;  // order
};

py::array matrix(const CheckpointTensor& tensor) {
  py::array_t<float> values({static_cast<py::ssize_t>(tensor.shape[0]), static_cast<py::ssize_t>(tensor.shape[1])});
  copy_values(tensor, values.mutable_data());
  return values;
}

// {layer: (lora_A, lora_B, scale)}, the matrices as float32, by `inner_layer`.
py::dict read_adapter(const std::string& directory) {
  const AdapterCheckpoint checkpoint = AdapterCheckpoint::open(directory);
  py::dict layers;
  for (const auto& [name, module] : checkpoint.modules()) {
    layers[py::str(name)] = py::make_tuple(matrix(*module.down), matrix(*module.up), module.scale);
  }
  return layers;
}

}  // namespace

void bind_worker(py::module_& m) {
  m.attr("choice_dtype") = choice_dtype();
  py::enum_<OrderKind>(m, "OrderKind", py::module_local())
      .value("LOAD", OrderKind::kLoad)
      .value("ALLOCATE", OrderKind::kAllocate)
      .value("STEP", OrderKind::kStep)
      .value("SET_ADAPTER", OrderKind::kSetAdapter)
      .value("DROP_ADAPTER", OrderKind::kDropAdapter)
      .value("MOVE_BLOCKS", OrderKind::kMoveBlocks);
  py::class_<Order>(m, "Order", py::module_local())
      .def_readonly("kind", &Order::kind)
      .def_readonly("page_bytes", &Order::page_bytes)
      .def_readonly("block_count", &Order::block_count)
      .def_readonly("block_len", &Order::block_len)
      .def_readonly("host_block_count", &Order::host_block_count)
      .def_readonly("sequences", &Order::sequences)
      .def_readonly("sequence_blocks", &Order::sequence_blocks)
      .def_readonly("moves", &Order::moves)
      .def_readonly("rows", &Order::rows)
      .def_readonly("spans", &Order::spans)
      .def_readonly("logit_rows", &Order::logit_rows)
      .def_readonly("choices", &Order::choices)
      .def_readonly("area", &Order::area)
      .def_readonly("embedded", &Order::embedded)
      .def_readonly("has_grid", &Order::has_grid)
      .def_readonly("slot", &Order::slot)
      .def_property_readonly("directory", [](const Order& order) {
        return std::string(order.directory, static_cast<size_t>(order.directory_bytes));
      });
  m.def("read_adapter", &read_adapter, py::arg("directory"));
  m.def("inner_layer", &inner_layer, py::arg("name"));
  py::class_<WorkerChannel>(m, "WorkerChannel", py::module_local())
      .def(py::init<int, int>(), py::arg("fd"), py::arg("rank"))
      .def("wait", &WorkerChannel::wait, py::arg("seconds"))
      .def("finish", &WorkerChannel::finish, py::arg("number"), py::arg("has_failed"), py::arg("text"))
      .def("area", &WorkerChannel::area, py::arg("index"))
      .def_property_readonly("logits", &WorkerChannel::logits)
      .def_property_readonly("hidden", &WorkerChannel::hidden);
}

}  // namespace turbomind
