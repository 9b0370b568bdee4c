// Runs a model in onnxruntime, with onnxq's compiled operators if their library is named, and prints its outputs.
//
//   c++ -std=c++17 -I ORT/include run_model.cc -L ORT/lib -lonnxruntime -Wl,-rpath,ORT/lib -o run_model
//   ./run_model model.onnx libonnxq_native.so
//
// ORT is a release of onnxruntime (or Debian's libonnxruntime-dev). Number i of a floating-point input is sin(i), of an
// integer one i % 7; dimensions that the model leaves free are 1.

#include <onnxruntime_cxx_api.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

Ort::Value made_up(const Ort::TypeInfo& info) {
  const auto tensor = info.GetTensorTypeAndShapeInfo();
  std::vector<int64_t> shape = tensor.GetShape();
  for (int64_t& n : shape) {
    n = n < 0 ? 1 : n;
  }
  Ort::AllocatorWithDefaultOptions allocator;
  const ONNXTensorElementDataType type = tensor.GetElementType();
  Ort::Value value = Ort::Value::CreateTensor(allocator, shape.data(), shape.size(), type);
  const size_t count = value.GetTensorTypeAndShapeInfo().GetElementCount();
  for (size_t i = 0; i < count; ++i) {
    if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) {
      value.GetTensorMutableData<float>()[i] = std::sin(static_cast<float>(i));
    } else if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64) {
      value.GetTensorMutableData<int64_t>()[i] = static_cast<int64_t>(i % 7);
    } else {
      throw std::runtime_error("this sample knows inputs of float32 and int64 only");
    }
  }
  return value;
}

void print(const std::string& name, const Ort::Value& value) {
  const auto tensor = value.GetTensorTypeAndShapeInfo();
  std::printf("%s [", name.c_str());
  for (size_t i = 0; i < tensor.GetShape().size(); ++i) {
    std::printf("%s%lld", i == 0 ? "" : ", ", static_cast<long long>(tensor.GetShape()[i]));
  }
  std::printf("]");
  for (size_t i = 0; i < tensor.GetElementCount(); ++i) {
    std::printf(" %.9g", value.GetTensorData<float>()[i]);
  }
  std::printf("\n");
}

void run(const std::string& model, const std::string& library) {
  Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "onnxq");
  Ort::SessionOptions options;
  if (!library.empty()) {
    options.RegisterCustomOpsLibrary(std::basic_string<ORTCHAR_T>(library.begin(), library.end()).c_str());
  }
  Ort::Session session(env, std::basic_string<ORTCHAR_T>(model.begin(), model.end()).c_str(), options);

  Ort::AllocatorWithDefaultOptions allocator;
  std::vector<std::string> inputs, outputs;
  std::vector<Ort::Value> values;
  for (size_t i = 0; i < session.GetInputCount(); ++i) {
    inputs.push_back(session.GetInputNameAllocated(i, allocator).get());
    values.push_back(made_up(session.GetInputTypeInfo(i)));
  }
  for (size_t i = 0; i < session.GetOutputCount(); ++i) {
    outputs.push_back(session.GetOutputNameAllocated(i, allocator).get());
  }
  std::vector<const char*> input_names, output_names;
  for (const std::string& name : inputs) input_names.push_back(name.c_str());
  for (const std::string& name : outputs) output_names.push_back(name.c_str());
  const std::vector<Ort::Value> found = session.Run(Ort::RunOptions(), input_names.data(), values.data(), values.size(),
                                                    output_names.data(), output_names.size());
  for (size_t i = 0; i < found.size(); ++i) {
    print(outputs[i], found[i]);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: run_model MODEL [LIBRARY]\n");
    return 2;
  }
  try {
    run(argv[1], argc > 2 ? argv[2] : "");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "run_model: %s\n", error.what());
    return 1;
  }
}
