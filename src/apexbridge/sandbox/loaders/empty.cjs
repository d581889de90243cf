// Required once by node.cjs, which makes later requires faster.
