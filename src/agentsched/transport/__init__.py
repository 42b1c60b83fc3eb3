"""The wire: HTTP requests in and out, SSE, error mapping. Knows no engine, keeps no state of calls."""
