#include "device/device.h"

#include "base/error.h"
#include "device/cpu_device.h"

namespace turbomind {

namespace {

// The CPU is always there.
std::vector<Device>& devices() {
  static std::vector<Device> all = {cpu_device()};
  return all;
}

std::string joined(const std::vector<Device>& all) {
  std::string names = "auto";
  for (const Device& device : all) names += ", " + device.name;
  return names;
}

}  // namespace

bool add_device(const Device& device) {
  devices().push_back(device);
  return true;
}

const Device& find_device(const std::string& name) {
  const Device* found = nullptr;
  for (const Device& device : devices()) {
    const bool is_preferred = name == "auto" && device.count() > 0;
    if (is_preferred || device.name == name) found = &device;
  }
  if (found != nullptr) return *found;
  throw invalid_argument("device must be one that this build has (" + joined(devices()) + "), got " + name +
                         (name == "cuda" ? "; make build CUDA=1 adds it" : ""));
}

std::vector<std::string> available_devices() {
  std::vector<std::string> names;
  for (const Device& device : devices()) {
    if (device.count() > 0) names.push_back(device.name);
  }
  return names;
}

}  // namespace turbomind
