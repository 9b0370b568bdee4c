// Runs a model in onnxruntime, with onnxq's compiled operators if their library is named, and prints its outputs.
//
//   java -cp onnxruntime.jar RunModel.java model.onnx libonnxq_native.so
//
// The jar is com.microsoft.onnxruntime:onnxruntime of Maven's central repository. Number i of a floating-point input is
// sin(i), of an integer one i % 7; dimensions that the model leaves free are 1.

import ai.onnxruntime.NodeInfo;
import ai.onnxruntime.OnnxJavaType;
import ai.onnxruntime.OnnxTensor;
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtException;
import ai.onnxruntime.OrtSession;
import ai.onnxruntime.TensorInfo;
import java.nio.FloatBuffer;
import java.nio.LongBuffer;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;

public class RunModel {
  public static void main(String[] arguments) throws OrtException {
    if (arguments.length < 1) {
      System.err.println("usage: RunModel MODEL [LIBRARY]");
      System.exit(2);
    }
    OrtEnvironment env = OrtEnvironment.getEnvironment();
    try (OrtSession.SessionOptions options = new OrtSession.SessionOptions()) {
      if (arguments.length > 1) {
        options.registerCustomOpLibrary(arguments[1]);
      }
      try (OrtSession session = env.createSession(arguments[0], options)) {
        Map<String, OnnxTensor> inputs = new LinkedHashMap<>();
        for (NodeInfo input : session.getInputInfo().values()) {
          inputs.put(input.getName(), madeUp(env, (TensorInfo) input.getInfo()));
        }
        try (OrtSession.Result found = session.run(inputs)) {
          for (String name : session.getOutputNames()) {
            print(name, (OnnxTensor) found.get(name).get());
          }
        }
      }
    }
  }

  static OnnxTensor madeUp(OrtEnvironment env, TensorInfo info) throws OrtException {
    long[] shape = Arrays.stream(info.getShape()).map(n -> n < 0 ? 1 : n).toArray();
    int count = (int) Arrays.stream(shape).reduce(1, (a, b) -> a * b);
    if (info.type == OnnxJavaType.INT64) {
      LongBuffer numbers = LongBuffer.allocate(count);
      for (int i = 0; i < count; i++) {
        numbers.put(i, i % 7);
      }
      return OnnxTensor.createTensor(env, numbers, shape);
    }
    if (info.type != OnnxJavaType.FLOAT) {
      throw new IllegalArgumentException("this sample knows inputs of float32 and int64 only");
    }
    FloatBuffer numbers = FloatBuffer.allocate(count);
    for (int i = 0; i < count; i++) {
      numbers.put(i, (float) Math.sin(i));
    }
    return OnnxTensor.createTensor(env, numbers, shape);
  }

  static void print(String name, OnnxTensor tensor) {
    StringBuilder line = new StringBuilder(name + " " + Arrays.toString(tensor.getInfo().getShape()));
    FloatBuffer numbers = tensor.getFloatBuffer();
    while (numbers.hasRemaining()) {
      line.append(' ').append(numbers.get());
    }
    System.out.println(line);
  }
}
