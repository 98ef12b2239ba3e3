
define internal void @kernel.body(ptr noalias %g0, ptr noalias readonly %g1, i64 %lo, i64 %hi, ptr noalias %scratch) #0 {
entry:
  br label %loop1
loop1:
  %x1 = phi i64 [ 0, %entry ], [ %x1.next, %done4 ]
  %x2 = shl i64 %x1, 6
  br label %loop3
loop3:
  %x3 = phi i64 [ 0, %loop1 ], [ %x3.next, %loop3 ]
  %x4 = phi <4 x float> [ <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>, %loop1 ], [ %x10, %loop3 ]
  %x5 = phi <4 x float> [ <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>, %loop1 ], [ %x14, %loop3 ]
  %x6 = shl i64 %x3, 3
  %x7 = add i64 %x2, %x6
  %x8 = getelementptr float, ptr %g1, i64 %x7
  %x9 = load <4 x float>, ptr %x8, align 4
  %x10 = fadd <4 x float> %x4, %x9
  %x11 = add i64 %x7, 4
  %x12 = getelementptr float, ptr %g1, i64 %x11
  %x13 = load <4 x float>, ptr %x12, align 4
  %x14 = fadd <4 x float> %x5, %x13
  %x3.next = add nuw nsw i64 %x3, 1
  %x15 = icmp slt i64 %x3.next, 8
  br i1 %x15, label %loop3, label %done4
done4:
  %x16 = fadd <4 x float> %x10, %x14
  %x17 = shufflevector <4 x float> %x16, <4 x float> poison, <2 x i32> <i32 0, i32 1>
  %x18 = shufflevector <4 x float> %x16, <4 x float> poison, <2 x i32> <i32 2, i32 3>
  %x19 = fadd <2 x float> %x17, %x18
  %x20 = extractelement <2 x float> %x19, i32 0
  %x21 = extractelement <2 x float> %x19, i32 1
  %x22 = fadd float %x20, %x21
  %x23 = getelementptr float, ptr %g0, i64 %x1
  store float %x22, ptr %x23, align 4
  %x1.next = add nuw nsw i64 %x1, 1
  %x24 = icmp slt i64 %x1.next, 4
  br i1 %x24, label %loop1, label %done2
done2:
  ret void
}

define void @kernel(ptr %args, i64 %lo, i64 %hi, ptr %scratch) #0 {
entry:
  %p0 = getelementptr ptr, ptr %args, i64 0
  %g0 = load ptr, ptr %p0, align 8
  %p1 = getelementptr ptr, ptr %args, i64 1
  %g1 = load ptr, ptr %p1, align 8
  call void @kernel.body(ptr %g0, ptr %g1, i64 %lo, i64 %hi, ptr %scratch)
  ret void
}

define i64 @kernel.extent(ptr %args) #0 {
entry:
  ret i64 1
}

attributes #0 = { nounwind }
