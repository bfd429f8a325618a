"""NATS: connect, declare streams and buckets, publish batches; FastStream glue for workers."""
