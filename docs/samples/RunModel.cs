// Runs a model in onnxruntime, with onnxq's compiled operators if their library is named, and prints its outputs.
//
//   dotnet add package Microsoft.ML.OnnxRuntime
//   dotnet run -- model.onnx libonnxq_native.so
//
// Number i of a floating-point input is sin(i), of an integer one i % 7; dimensions that the model leaves free are 1.

using System;
using System.Collections.Generic;
using System.Globalization;
using System.Linq;
using Microsoft.ML.OnnxRuntime;
using Microsoft.ML.OnnxRuntime.Tensors;

public static class RunModel
{
    public static int Main(string[] arguments)
    {
        if (arguments.Length < 1)
        {
            Console.Error.WriteLine("usage: RunModel MODEL [LIBRARY]");
            return 2;
        }
        try
        {
            using (var options = new SessionOptions())
            {
                if (arguments.Length > 1)
                {
                    options.RegisterCustomOpLibrary(arguments[1]);
                }
                using (var session = new InferenceSession(arguments[0], options))
                {
                    var inputs = session.InputMetadata.Select(input => MadeUp(input.Key, input.Value)).ToList();
                    using (var found = session.Run(inputs))
                    {
                        foreach (var output in found)
                        {
                            Print(output.Name, output.AsTensor<float>());
                        }
                    }
                }
            }
            return 0;
        }
        catch (OnnxRuntimeException error)
        {
            Console.Error.WriteLine(error.Message);
            return 1;
        }
    }

    static NamedOnnxValue MadeUp(string name, NodeMetadata of)
    {
        int[] shape = of.Dimensions.Select(size => size < 0 ? 1 : size).ToArray();
        int count = shape.Aggregate(1, (a, b) => a * b);
        if (of.ElementType == typeof(long))
        {
            long[] numbers = Enumerable.Range(0, count).Select(i => (long)(i % 7)).ToArray();
            return NamedOnnxValue.CreateFromTensor(name, new DenseTensor<long>(numbers, shape));
        }
        if (of.ElementType != typeof(float))
        {
            throw new NotSupportedException("this sample knows inputs of float32 and int64 only");
        }
        float[] floats = Enumerable.Range(0, count).Select(i => (float)Math.Sin(i)).ToArray();
        return NamedOnnxValue.CreateFromTensor(name, new DenseTensor<float>(floats, shape));
    }

    static void Print(string name, Tensor<float> tensor)
    {
        string shape = string.Join(", ", tensor.Dimensions.ToArray());
        IEnumerable<string> numbers = tensor.Select(x => x.ToString("G9", CultureInfo.InvariantCulture));
        Console.WriteLine(name + " [" + shape + "] " + string.Join(" ", numbers));
    }
}
