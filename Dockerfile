# SPDX-License-Identifier: Apache-2.0
# One build stage on the builder's own platform, cross-compiling; one image per binary: --target manager, --target proxy.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS=linux
ARG TARGETARCH
ARG VERSION=dev
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY api/ api/
COPY cmd/ cmd/
COPY internal/ internal/
ENV CGO_ENABLED=0 GOOS=${TARGETOS} GOARCH=${TARGETARCH}
RUN go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/ ./cmd/manager ./cmd/proxy

FROM gcr.io/distroless/static:nonroot AS proxy
COPY --from=build /out/proxy /proxy
USER 65532:65532
ENTRYPOINT ["/proxy"]

FROM gcr.io/distroless/static:nonroot AS manager
COPY --from=build /out/manager /manager
USER 65532:65532
ENTRYPOINT ["/manager"]
