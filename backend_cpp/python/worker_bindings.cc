#include "python/worker_bindings.h"

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

// One end of a StepChannel, as a rank sees it.
class WorkerChannel {
 public:
  WorkerChannel(int fd, int rank) : channel_(fd), rank_(rank) {
    if (rank < 0 || rank >= channel_.shape().ranks) throw invalid_argument("there is no rank " + std::to_string(rank));
  }

  // The next order; None: none came in that time.
  py::object wait(double seconds) {
    {
      const py::gil_scoped_release unlocked;
      const auto timeout = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
      if (!channel_.wait_order(rank_, timeout)) return py::none();
    }
    return py::cast(channel_.order());
  }

  void finish(bool has_failed, const std::string& text) { channel_.finish(rank_, has_failed, text); }

  // Views of the shared memory; `owner` keeps it.
  static py::array tokens(const py::object& owner) {
    const StepChannel& channel = of(owner);
    return py::array_t<int32_t>(channel.shape().rows, channel.tokens(), owner);
  }
  static py::array spans(const py::object& owner) {
    const StepChannel& channel = of(owner);
    return py::array_t<int32_t>({channel.shape().spans, kSpanFields}, reinterpret_cast<int32_t*>(channel.spans()),
                                owner);
  }
  static py::array blocks(const py::object& owner) {
    const StepChannel& channel = of(owner);
    return py::array_t<int32_t>(channel.shape().blocks, channel.blocks(), owner);
  }
  static py::array logits(const py::object& owner) {
    const StepChannel& channel = of(owner);
    return py::array_t<float>({channel.shape().rows, channel.shape().vocab_size}, channel.logits(), owner);
  }
  static py::array hidden(const py::object& owner) {
    const StepChannel& channel = of(owner);
    return py::array_t<float>({channel.shape().rows, channel.shape().hidden_size}, channel.hidden(), owner);
  }
  static py::array embedded_rows(const py::object& owner) {
    const StepChannel& channel = of(owner);
    return py::array_t<int32_t>(seeing_rows(channel), channel.embedded_rows(), owner);
  }
  static py::array embeddings(const py::object& owner) {
    const StepChannel& channel = of(owner);
    return py::array_t<float>({seeing_rows(channel), channel.shape().embedding_width}, channel.embeddings(), owner);
  }
  static py::array grid_positions(const py::object& owner) {
    const StepChannel& channel = of(owner);
    return py::array_t<int32_t>({seeing_rows(channel), 3}, channel.grid_positions(), owner);
  }

 private:
  static int seeing_rows(const StepChannel& channel) {
    return channel.shape().embedding_width > 0 ? channel.shape().rows : 0;
  }
  static const StepChannel& of(const py::object& owner) { return owner.cast<const WorkerChannel&>().channel_; }

  StepChannel channel_;
  int rank_;
};

py::array matrix(const CheckpointTensor& tensor) {
  py::array_t<float> values({static_cast<py::ssize_t>(tensor.shape[0]), static_cast<py::ssize_t>(tensor.shape[1])});
  copy_values(tensor, values.mutable_data());
  return values;
}

// {layer: (lora_A, lora_B, scale)}, the matrices as float32.
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
  py::enum_<OrderKind>(m, "OrderKind", py::module_local())
      .value("LOAD", OrderKind::kLoad)
      .value("ALLOCATE", OrderKind::kAllocate)
      .value("STEP", OrderKind::kStep)
      .value("PLACE_ADAPTER", OrderKind::kPlaceAdapter)
      .value("DROP_ADAPTER", OrderKind::kDropAdapter)
      .value("MOVE_BLOCKS", OrderKind::kMoveBlocks);
  py::class_<Order>(m, "Order", py::module_local())
      .def_readonly("kind", &Order::kind)
      .def_readonly("page_bytes", &Order::page_bytes)
      .def_readonly("block_count", &Order::block_count)
      .def_readonly("block_len", &Order::block_len)
      .def_readonly("host_block_count", &Order::host_block_count)
      .def_readonly("moves", &Order::moves)
      .def_readonly("rows", &Order::rows)
      .def_readonly("spans", &Order::spans)
      .def_readonly("wanted", &Order::wanted)
      .def_readonly("embedded", &Order::embedded)
      .def_readonly("has_grid", &Order::has_grid)
      .def_readonly("slot", &Order::slot)
      .def_property_readonly("directory", [](const Order& order) {
        return std::string(order.directory, static_cast<size_t>(order.directory_bytes));
      });
  m.def("read_adapter", &read_adapter, py::arg("directory"));
  py::class_<WorkerChannel>(m, "WorkerChannel", py::module_local())
      .def(py::init<int, int>(), py::arg("fd"), py::arg("rank"))
      .def("wait", &WorkerChannel::wait, py::arg("seconds"))
      .def("finish", &WorkerChannel::finish, py::arg("has_failed"), py::arg("text"))
      .def_property_readonly("tokens", &WorkerChannel::tokens)
      .def_property_readonly("spans", &WorkerChannel::spans)
      .def_property_readonly("blocks", &WorkerChannel::blocks)
      .def_property_readonly("logits", &WorkerChannel::logits)
      .def_property_readonly("hidden", &WorkerChannel::hidden)
      .def_property_readonly("embedded_rows", &WorkerChannel::embedded_rows)
      .def_property_readonly("embeddings", &WorkerChannel::embeddings)
      .def_property_readonly("grid_positions", &WorkerChannel::grid_positions);
}

}  // namespace turbomind
